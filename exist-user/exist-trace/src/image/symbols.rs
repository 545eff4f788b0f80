//! Names: address → function, from the symbol tables of ELF files.

use std::{collections::HashMap, sync::Arc};

use object::{
    Object, ObjectSegment, ObjectSymbol, SymbolKind,
    read::elf::{ElfFile32, ElfFile64},
};

use super::space::{Image, Section, Space};

/// A function of a file; a small number that stands for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Demangled; `[module]` where the module has no symbol for it.
    pub name: Arc<str>,
    /// The file's name, without its folders.
    pub module: Arc<str>,
}

struct Symbol {
    /// Virtual address in the file.
    start: u64,
    end: u64,
    mangled: String,
    id: Option<FunctionId>,
}

#[derive(Default)]
struct Table {
    /// By address.
    symbols: Vec<Symbol>,
    /// File offset, size and address of what is loaded.
    segments: Vec<(u64, u64, u64)>,
    other: Option<FunctionId>,
}

/// Names of all functions met so far.
#[derive(Default)]
pub struct Symbols {
    tables: HashMap<usize, Table>,
    functions: Vec<Function>,
}

/// What stands at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub function: FunctionId,
    /// Whether it is the function's first address.
    pub entry: bool,
    /// Whether the function has a symbol of its own.
    pub named: bool,
    /// Bytes from the function's first address; 0 where it has no symbol.
    pub offset: u64,
}

impl Symbols {
    /// The function with this number.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.0 as usize]
    }

    /// The function at `ip`.
    pub fn place(&mut self, space: &Space<'_>, image: &Image, ip: u64) -> Place {
        let Some(section) = space.section(ip) else {
            let id = self.other(usize::MAX, "unknown");
            return Place {
                function: id,
                entry: false,
                named: false,
                offset: 0,
            };
        };
        let table = self
            .tables
            .entry(section.file)
            .or_insert_with(|| read(image, section.file));
        let address = table.address(section, ip);
        let at = address.map_or(0, |a| table.symbols.partition_point(|s| s.start <= a));
        let hit = at
            .checked_sub(1)
            .filter(|&i| address.is_some_and(|a| a < table.symbols[i].end));
        let path = &image.files()[section.file].path;
        let Some(hit) = hit else {
            let path = path.clone();
            let id = self.other(section.file, &path);
            return Place {
                function: id,
                entry: false,
                named: false,
                offset: 0,
            };
        };
        let symbol = &mut table.symbols[hit];
        let offset = address.map_or(0, |address| address - symbol.start);
        let function = *symbol.id.get_or_insert_with(|| {
            self.functions.push(Function {
                name: demangle(&symbol.mangled).into(),
                module: module(path),
            });
            FunctionId((self.functions.len() - 1) as u32)
        });
        Place {
            function,
            entry: offset == 0,
            named: true,
            offset,
        }
    }

    /// What has no symbol in a module.
    fn other(&mut self, file: usize, path: &str) -> FunctionId {
        let table = self.tables.entry(file).or_default();
        *table.other.get_or_insert_with(|| {
            let module = module(path);
            self.functions.push(Function {
                name: format!("[{module}]").into(),
                module,
            });
            FunctionId((self.functions.len() - 1) as u32)
        })
    }
}

impl Table {
    fn address(&self, section: Section, ip: u64) -> Option<u64> {
        let offset = section.offset.checked_add(ip - section.start)?;
        let inside = |&&(start, size, _): &&(u64, u64, u64)| offset >= start && offset - start < size;
        let &(start, _, address) = self.segments.iter().find(inside)?;
        address.checked_add(offset - start)
    }
}

fn module(path: &str) -> Arc<str> {
    path.rsplit('/').next().unwrap_or(path).into()
}

fn read(image: &Image, file: usize) -> Table {
    let Ok(bytes) = &image.files()[file].bytes else {
        return Table::default();
    };
    // The vDSO and every program here is little-endian ELF; anything else has no names.
    if let Ok(elf) = ElfFile64::<object::Endianness>::parse(&**bytes) {
        return table(&elf);
    }
    ElfFile32::<object::Endianness>::parse(&**bytes).map_or_else(|_| Table::default(), |elf| table(&elf))
}

fn table<'d>(elf: &impl Object<'d>) -> Table {
    let segments = elf
        .segments()
        .map(|s| (s.file_range().0, s.file_range().1, s.address()))
        .collect();
    let mut symbols: Vec<Symbol> = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .filter(|s| s.kind() == SymbolKind::Text && s.is_definition())
        .filter_map(|s| {
            let mangled = s.name().ok().filter(|n| !n.is_empty())?.to_owned();
            Some(Symbol {
                start: s.address(),
                end: s.address().saturating_add(s.size()),
                mangled,
                id: None,
            })
        })
        .collect();
    // Of several names for one address: the longest function, then the name that is plainest.
    symbols.sort_by(|a, b| {
        let plain = |s: &Symbol| (s.mangled.starts_with('_'), s.mangled.len());
        a.start
            .cmp(&b.start)
            .then(b.end.cmp(&a.end))
            .then(plain(a).cmp(&plain(b)))
            .then(a.mangled.cmp(&b.mangled))
    });
    symbols.dedup_by_key(|s| s.start);
    // Assembly functions often have no size: they reach to the next one.
    for i in 0..symbols.len() {
        let next = symbols.get(i + 1).map_or(u64::MAX, |s| s.start);
        let symbol = &mut symbols[i];
        symbol.end = if symbol.end == symbol.start {
            next.min(symbol.start + 4096)
        } else {
            symbol.end.min(next)
        };
    }
    Table {
        symbols,
        segments,
        other: None,
    }
}

/// A name as its language writes it.
fn demangle(mangled: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(mangled) {
        // Without the hash.
        return format!("{rust:#}");
    }
    if mangled.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(mangled)
        && let Ok(text) = symbol.demangle()
    {
        return text;
    }
    mangled.to_owned()
}

/// The GNU build ID of an ELF file, if it has one.
#[must_use]
pub fn build_id(elf: &[u8]) -> Option<Vec<u8>> {
    if let Ok(elf) = ElfFile64::<object::Endianness>::parse(elf) {
        return elf.build_id().ok().flatten().map(<[u8]>::to_vec);
    }
    let elf = ElfFile32::<object::Endianness>::parse(elf).ok()?;
    elf.build_id().ok().flatten().map(<[u8]>::to_vec)
}
