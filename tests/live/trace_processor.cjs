// Runs SQL on a trace with Perfetto's own trace processor: the WebAssembly engine of its UI, under Node, no browser.
//   node trace_processor.cjs UI_FOLDER TRACE SQL...
// Prints one JSON array of rows for each statement. UI_FOLDER is web_dist/v52* of the PyPI wheel that xtask/src/perfetto_ui.rs names.
'use strict';
const { readFileSync } = require('fs');
const { basename, join } = require('path');
const { runInThisContext } = require('vm');
const { MessageChannel } = require('worker_threads');

const [folder, trace, ...statements] = process.argv.slice(2);
const asset = (url) => readFileSync(join(folder, basename(String(url))));

// The engine is written for a web worker: give it what it asks one for.
Object.assign(globalThis, {
  self: globalThis,
  WorkerGlobalScope: class {},
  importScripts() {},
  location: { href: 'http://localhost/engine_bundle.js' },
  fetch: async (url) => new Response(asset(url), { headers: { 'content-type': 'application/wasm' } }),
  XMLHttpRequest: class {
    open(_method, url) { this.url = url; }
    send() {
      this.status = 200;
      this.response = Uint8Array.from(asset(this.url)).buffer;
    }
  },
});
const log = console.log;
console.log = console.warn = () => {};
// Without `process` in sight it does not take itself for a Node program.
const bundle = runInThisContext(`(function (process, require, module, exports) {${asset('engine_bundle.js')}\n})`);
bundle.call(globalThis);

// Protobuf, as far as TraceProcessorRpc (protos/perfetto/trace_processor/trace_processor.proto) needs it.
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field * 8 + 2), varint(value.length), value]);

class Message {
  constructor(buffer) { this.buffer = buffer; this.at = 0; }
  varint() {
    for (let value = 0n, shift = 0n; ; shift += 7n) {
      const byte = this.buffer[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  take(n) { this.at += n; return this.buffer.subarray(this.at - n, this.at); }
  *fields() {
    while (this.at < this.buffer.length) {
      const key = Number(this.varint());
      const kind = key & 7;
      if (kind === 0) yield [key >> 3, this.varint()];
      else if (kind === 2) yield [key >> 3, this.take(Number(this.varint()))];
      else yield [key >> 3, this.take(kind === 1 ? 8 : 4)];
    }
  }
  all(field) { return [...new Message(this.buffer).fields()].filter(([f]) => f === field).map(([, v]) => v); }
}

const APPEND = 1, FINALIZE = 2, QUERY = 3;
const channel = new MessageChannel();
let answered;
channel.port2.on('message', (data) => {
  for (const [, rpc] of new Message(Buffer.from(data)).fields()) answered(new Message(rpc));
});
globalThis.self.onmessage({ data: channel.port1 });
let sequence = 0;
function call(method, args, isLast = () => true) {
  const answers = [];
  const rpc = Buffer.concat([number(1, sequence++), number(2, method), ...args]);
  return new Promise((resolve) => {
    answered = (rpc) => { answers.push(rpc); if (isLast(rpc)) resolve(answers); };
    channel.port2.postMessage(Uint8Array.from(bytes(1, rpc)));
  });
}

// QueryResult: columns, cells by type in batches.
function rowsOf(results) {
  const columns = results.flatMap((r) => r.all(1)).map(String);
  const cells = [];
  for (const batch of results.flatMap((r) => r.all(3)).map((b) => new Message(b))) {
    const types = batch.all(1).flatMap((b) => [...b]);
    const ints = batch.all(2).flatMap((b) => { const m = new Message(b), out = []; while (m.at < b.length) out.push(m.varint()); return out; });
    const doubles = batch.all(3).flatMap((b) => Array.from({ length: b.length / 8 }, (_, i) => b.readDoubleLE(i * 8)));
    const texts = batch.all(5).map(String).join('').split('\0');
    for (const type of types) {
      if (type === 2) cells.push(Number(BigInt.asIntN(64, ints.shift())));
      else if (type === 3) cells.push(doubles.shift());
      else if (type === 4) cells.push(texts.shift());
      else cells.push(null);
    }
  }
  const rows = [];
  for (let i = 0; i < cells.length; i += columns.length) rows.push(cells.slice(i, i + columns.length));
  return rows;
}

(async () => {
  await call(APPEND, [bytes(101, readFileSync(trace))]);
  await call(FINALIZE, []);
  for (const sql of statements) {
    const result = (rpc) => new Message(rpc.all(203)[0]);
    const isLast = (rpc) => rpc.all(203).length === 0 || result(rpc).all(2).length > 0
      || result(rpc).all(3).some((batch) => new Message(batch).all(6).length > 0);
    const results = (await call(QUERY, [bytes(103, bytes(1, Buffer.from(sql)))], isLast)).map(result);
    const errors = results.flatMap((r) => r.all(2)).map(String);
    if (errors.length > 0) {
      console.error(`${sql}: ${errors.join('; ')}`);
      process.exit(1);
    }
    log(JSON.stringify(rowsOf(results)));
  }
  process.exit(0);
})();
