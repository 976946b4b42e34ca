//! Detects whether a program needs a dynamic linker, which exists in its container but may not
//! exist on the host.

/// How many bytes of a program are searched for its headers. Linkers write them first.
pub(super) const HEADER_SEARCH_BYTES: usize = 4096;

const MAGIC: &[u8] = b"\x7fELF";
const PT_LOAD: u64 = 1;
const PT_INTERP: u64 = 3;

/// Offsets of the relevant header fields in bytes (elf(5)), and the size of an address.
struct ElfClass {
    phoff: usize,
    phentsize: usize,
    phnum: usize,
    address: usize,
}

const ELF32: ElfClass = ElfClass {
    phoff: 28,
    phentsize: 42,
    phnum: 44,
    address: 4,
};
const ELF64: ElfClass = ElfClass {
    phoff: 32,
    phentsize: 54,
    phnum: 56,
    address: 8,
};

/// Whether the program with these first bytes needs a dynamic linker; none if they are not a
/// supported ELF header.
pub(super) fn is_dynamic(head: &[u8]) -> Option<bool> {
    if !head.starts_with(MAGIC) {
        return None;
    }
    let class = match head.get(4)? {
        1 => ELF32,
        2 => ELF64,
        _ => return None,
    };
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = head.get(at..at.checked_add(length)?)?.iter();
        let push = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        match head.get(5)? {
            1 => Some(bytes.rev().fold(0, push)),
            2 => Some(bytes.fold(0, push)),
            _ => None,
        }
    };
    let first = usize::try_from(number(class.phoff, class.address)?).ok()?;
    let size = usize::try_from(number(class.phentsize, 2)?).ok()?;
    let count = usize::try_from(number(class.phnum, 2)?).ok()?;
    let kinds = (0..count).map(|index| {
        let at = index.checked_mul(size)?.checked_add(first)?;
        number(at, 4)
    });
    let kinds: Vec<u64> = kinds.collect::<Option<_>>()?;
    kinds.contains(&PT_LOAD).then(|| kinds.contains(&PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(class: &ElfClass, big: bool, kinds: &[u64]) -> Vec<u8> {
        let mut head = vec![0; 64 + kinds.len() * 56];
        head[..4].copy_from_slice(MAGIC);
        head[4] = if class.address == 8 { 2 } else { 1 };
        head[5] = if big { 2 } else { 1 };
        let mut put = |at: usize, length: usize, number: u64| {
            for byte in 0..length {
                let shift = if big { length - 1 - byte } else { byte };
                head[at + byte] = (number >> (8 * shift)).to_le_bytes()[0];
            }
        };
        put(class.phoff, class.address, 64);
        put(class.phentsize, 2, 56);
        put(class.phnum, 2, kinds.len() as u64);
        for (index, kind) in kinds.iter().enumerate() {
            put(64 + index * 56, 4, *kind);
        }
        head
    }

    #[test]
    fn an_elf_with_an_interpreter_is_dynamic() {
        for class in [ELF32, ELF64] {
            for big in [false, true] {
                let judge = |kinds: &[u64]| is_dynamic(&program(&class, big, kinds));
                assert_eq!(judge(&[1, 1]), Some(false));
                // Position-independent and static: PT_DYNAMIC without PT_INTERP.
                assert_eq!(judge(&[6, 1, 2]), Some(false));
                assert_eq!(judge(&[6, 3, 1, 2]), Some(true));
                assert_eq!(judge(&[]), None);
            }
        }
    }

    #[test]
    fn a_non_elf_or_truncated_file_is_neither_static_nor_dynamic() {
        let whole = program(&ELF64, false, &[1, 3]);
        for length in 0..whole.len() - 52 {
            assert_eq!(is_dynamic(&whole[..length]), None, "{length}");
        }
        assert_eq!(is_dynamic(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn the_linkage_of_the_running_test_binary_is_detected() {
        let program = machinist_rootfs::ChunkedReader::of_this_program().unwrap();
        let head = program.at(0, HEADER_SEARCH_BYTES).unwrap();
        assert!(is_dynamic(&head).is_some());
    }
}
