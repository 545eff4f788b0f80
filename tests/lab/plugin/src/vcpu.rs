//! One vCPU of the lab: its registers, its flow, its truth file. Takes what the call-backs saw, and moves packets to
//! the guest's memory and records to the host's disk.

use std::fs::File;
use std::io::Write as _;

use exist_lab_truth::Record;

use crate::flow::Flow;
use crate::machine::Machine;
use crate::msr::{Msrs, RTIT_CTL, RTIT_ERROR, RTIT_STOPPED, STATUS_TOPA_PMI};
use crate::tracer::ctl;
use crate::{apic, output};

/// Packets wait until there are this many bytes: well below any ToPA region.
const PACKETS_AT_ONCE: usize = 256;
/// Truth waits until there are this many bytes.
const TRUTH_AT_ONCE: usize = 1 << 18;

/// Everything about one vCPU.
pub struct Vcpu {
    pub index: u32,
    pub flow: Flow,
    pub msrs: Msrs,
    pub ratio: u8,
    truth: File,
    /// The last state of the lab's switches that this vCPU has followed.
    pub epoch: u64,
    /// An exception was announced whose transfer is to come.
    pub excepted: bool,
    pub counts: Counts,
}

/// What the plugin prints at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub rtit_writes: u64,
    pub interrupts: u64,
    pub packet_bytes: u64,
    pub truth_errors: u64,
}

impl Vcpu {
    /// A vCPU that starts now.
    pub fn new(index: u32, flow: Flow, ratio: u8, truth: File) -> Self {
        Self {
            index,
            flow,
            msrs: Msrs::default(),
            ratio,
            truth,
            epoch: 0,
            excepted: false,
            counts: Counts::default(),
        }
    }

    /// Whether its blocks must be seen: PT is on.
    pub fn traces(&self) -> bool {
        self.flow.tracer.is_on()
    }

    /// RDMSR: the value, or `None` when the register is QEMU's.
    pub fn read_msr(&self, register: u32) -> Option<u64> {
        self.msrs.read(register, self.ratio)
    }

    /// WRMSR; says whether the register is the lab's.
    pub fn write_msr(&mut self, register: u32, value: u64, machine: Machine, now: u64) -> bool {
        if register != RTIT_CTL {
            return self.msrs.write(register, value);
        }
        self.counts.rtit_writes += 1;
        self.flow.truth.push(now, &Record::RtitCtl { value });
        let (was, is) = (self.msrs.ctl & ctl::TRACE_EN != 0, value & ctl::TRACE_EN != 0);
        if was && !is {
            if let Some(bytes) = self.flow.tracer.disable(now) {
                self.flow.truth.push(now, &Record::OvfEnd { bytes });
            }
            // A region that fills here still raises its interrupt, as on hardware.
            self.drain(machine, now);
            self.msrs.set_packet_bytes(self.flow.tracer.packet_byte_count());
        }
        self.msrs.ctl = value;
        if is && !was && self.msrs.status & (RTIT_STOPPED | RTIT_ERROR) == 0 {
            let refused = value & (ctl::OS | ctl::CYC_EN);
            if refused != 0 {
                eprintln!(
                    "lab-plugin: RTIT_CTL {value:#x} asks for kernel code or CYC packets, which the lab does not emit"
                );
            }
            self.flow.lose_track();
            self.flow
                .tracer
                .enable(value, Msrs::packet_bytes(self.msrs.status), now);
            self.drain(machine, now);
        }
        true
    }

    /// Moves packets and truth on when enough of them wait.
    pub fn settle(&mut self, machine: Machine, now: u64) {
        if self.flow.tracer.pending().len() >= PACKETS_AT_ONCE {
            self.drain(machine, now);
        }
        if self.flow.truth.bytes().len() >= TRUTH_AT_ONCE {
            self.store();
        }
    }

    /// Writes the truth that waits to its file.
    pub fn store(&mut self) {
        if self.truth.write_all(self.flow.truth.bytes()).is_err() {
            self.counts.truth_errors += 1;
        }
        self.flow.truth.clear();
    }

    fn drain(&mut self, mut machine: Machine, now: u64) {
        let bytes = self.flow.tracer.pending();
        if bytes.is_empty() {
            return;
        }
        self.counts.packet_bytes += bytes.len() as u64;
        let topa = self.msrs.ctl & ctl::TOPA != 0;
        let write = if topa { output::write_topa } else { output::write_range };
        let effects = write(&mut self.msrs, &mut machine, bytes);
        self.flow.tracer.clear_pending();
        if effects.stopped || effects.error {
            self.msrs.status |= if effects.error { RTIT_ERROR } else { RTIT_STOPPED };
            self.flow.tracer.stop();
            self.flow.truth.push(now, &Record::Stopped);
        }
        if effects.interrupt {
            self.msrs.global_status |= STATUS_TOPA_PMI;
            if apic::raise(&mut machine, self.index) {
                self.counts.interrupts += 1;
                self.flow.truth.push(now, &Record::Pmi);
            }
        }
    }
}
