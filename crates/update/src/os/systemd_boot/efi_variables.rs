//! Reads the EFI variables of systemd-boot (Boot Loader Interface). `bootctl` writes them.

use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::systemd_boot::LoaderVariables;
use machinist_rootfs::Root;

/// Where the kernel shows EFI variables.
const DIRECTORY: &str = "/sys/firmware/efi/efivars";

/// The vendor of the variables.
const VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The attributes in front of the value.
const ATTRIBUTE_BYTES: usize = 4;

/// Maximum length of a variable; the names of entries are file names.
const MAX_VARIABLE_BYTES: u64 = 64 << 10;

/// Features in `LoaderFeatures` without which an entry cannot be tried: `LoaderEntryOneShot` and `sort-key`, which
/// systemd 250 has.
const REQUIRED_FEATURES: u64 = 1 << 3 | 1 << 8;

fn read(root: &Root, name: &str) -> Option<Vec<u8>> {
    let path = AbsPath::new(format!("{DIRECTORY}/{name}-{VENDOR}")).ok()?;
    let bytes = root.read(&path, MAX_VARIABLE_BYTES).ok()?;
    bytes.get(ATTRIBUTE_BYTES..).map(<[u8]>::to_vec)
}

/// The text of a variable, which is UTF-16 and ends with a zero.
fn text(root: &Root, name: &str) -> Option<String> {
    let bytes = read(root, name)?;
    let units = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16(&units)
        .ok()
        .filter(|text| !text.is_empty())
}

/// Whether systemd-boot has started the running kernel.
pub(in crate::os) fn is_booted(root: &Root) -> bool {
    text(root, "LoaderInfo").is_some_and(|info| info.starts_with("systemd-boot "))
}

/// Whether the loader can try an entry.
pub(super) fn has_features(root: &Root) -> bool {
    let value = read(root, "LoaderFeatures");
    let value = value.and_then(|bytes| bytes.try_into().ok());
    value.map(u64::from_le_bytes).unwrap_or_default() & REQUIRED_FEATURES == REQUIRED_FEATURES
}

/// How long the menu is shown, if that is set.
pub(super) fn timeout(root: &Root) -> Option<String> {
    text(root, "LoaderConfigTimeout")
}

/// The entry of the next boot.
pub(super) fn one_shot(root: &Root) -> Option<String> {
    text(root, "LoaderEntryOneShot")
}

/// The entry that systemd-boot 260 and later enter before the default one.
pub(super) fn preferred(root: &Root) -> Option<String> {
    text(root, "LoaderEntryPreferred")
}

/// The variables that select an entry.
pub(super) fn loader_variables(root: &Root) -> LoaderVariables {
    LoaderVariables {
        one_shot: one_shot(root),
        default: text(root, "LoaderEntryDefault"),
        last_booted: text(root, "LoaderEntryLastBooted"),
    }
}
