//! The boot entries that libostree writes, one for each finalized deployment.

use super::{deployment_origin::commit_of, error::OstreeError};
use crate::os::{
    DeploymentId,
    grub::{MenuSource, real_path},
    trial_arguments::is_trial_of,
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::{
    grub::{GrubFiles, SimulatedGrub},
    systemd_boot::MenuEntry,
};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::{DirEntry, Root};

const DIRECTORY: &str = "/boot/loader/entries";

/// The argument that selects a deployment.
const OSTREE: &str = "ostree";

/// The file of a single entry.
const ONE_ENTRY: &str = "x.conf";

/// Maximum length of an entry.
const MAX_ENTRY_BYTES: u64 = 64 << 10;

/// A finalized deployment.
#[derive(Clone, Debug)]
pub(super) struct BootEntry {
    pub(super) id: DeploymentId,
    /// The kernel arguments without the one that selects the deployment.
    pub(super) arguments: KernelCommandLine,
    /// The value of the argument that selects it.
    selector: String,
    /// The order of the menu: the highest number is the first.
    version: u64,
    /// GRUB replaces a variable in a part of an argument.
    pub(super) has_partial_variable: bool,
}

/// Reads the entries in the order of the menu.
pub(super) fn read(root: &Root) -> Result<Vec<BootEntry>, OstreeError> {
    let Ok(directory) = AbsPath::new(DIRECTORY) else {
        return Ok(Vec::new());
    };
    let source = MenuSource::of(root);
    let mut entries = Vec::new();
    for DirEntry { name, .. } in root.list(&directory)? {
        let is_own = name.starts_with("ostree-") && name.ends_with(".conf");
        let Some(file) = directory.join(&name).ok().filter(|_| is_own) else {
            continue;
        };
        let text = root.read_text(&file, MAX_ENTRY_BYTES)?;
        let entry = MenuEntry::parse(&name, &text, "");
        entries.extend(entry.and_then(|entry| BootEntry::of(root, &entry, source)));
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.version));
    Ok(entries)
}

impl BootEntry {
    /// `None` if the directory of the deployment is missing.
    fn of(root: &Root, entry: &MenuEntry, source: MenuSource) -> Option<Self> {
        let all = kernel_arguments(&entry.options, source)?;
        let (arguments, selector) = without_selector(&all);
        let selector = selector?;
        let directory = real_path(root, &AbsPath::new(&selector).ok()?)?;
        Some(Self {
            id: DeploymentId::new(directory.components().next_back()?),
            arguments,
            selector,
            version: entry.version.as_deref()?.parse().ok()?,
            has_partial_variable: source == MenuSource::BlsConfig && {
                let mut words = entry.options.split(' ');
                words.any(|word| word.contains('$') && variable(word).is_none())
            },
        })
    }

    /// Whether it is a trial of machinist.
    pub(super) fn is_trial(&self) -> bool {
        is_trial_of(commit_of(&self.id), &self.arguments)
    }

    /// Whether a boot with these arguments enters the deployment.
    pub(super) fn is_selected_by(&self, all: &KernelCommandLine) -> bool {
        without_selector(all).1.as_ref() == Some(&self.selector)
    }
}

/// Splits the argument off that selects a deployment.
pub(super) fn without_selector(all: &KernelCommandLine) -> (KernelCommandLine, Option<String>) {
    let mut own = all.clone();
    let selector = all.iter().rfind(|one| one.name() == OSTREE);
    if let Some(selector) = selector {
        own.remove_last(selector);
    }
    let value = selector.and_then(|one| one.value()).map(str::to_owned);
    (own, value)
}

/// A configuration with one entry, whose arguments are a text of GRUB's script language.
struct OneEntry<'t>(&'t str, MenuSource);

impl GrubFiles for OneEntry<'_> {
    fn text(&self, path: &str) -> Option<String> {
        match (path, self.1) {
            ("/grub.cfg", MenuSource::GrubConfig) => {
                Some(format!("menuentry x {{\nlinux /k {}\n}}\n", self.0))
            }
            ("/grub.cfg", MenuSource::BlsConfig) => Some("blscfg\n".to_owned()),
            (path, _) if path.ends_with(ONE_ENTRY) => {
                Some(format!("linux /k\noptions {}\n", self.0))
            }
            _ => None,
        }
    }

    fn size(&self, _path: &str) -> Option<u64> {
        Some(1)
    }

    fn is_directory(&self, _path: &str) -> bool {
        false
    }

    fn list(&self, _path: &str) -> Vec<String> {
        vec![ONE_ENTRY.to_owned()]
    }
}

/// The name of an argument that stands for a variable while an entry is read.
const VARIABLE: &str = "machinist.variable";

/// The name of a variable that is a whole word: `$ignition_firstboot` of Fedora CoreOS, `$tuned_params` of TuneD.
pub(super) fn variable(word: &str) -> Option<&str> {
    let name = word.strip_prefix('$')?;
    let braced = name
        .strip_prefix('{')
        .and_then(|name| name.strip_suffix('}'));
    let name = braced.unwrap_or(name);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

/// The arguments that the kernel gets from the options of an entry: libostree writes them as they are, and GRUB expands
/// them. Where GRUB reads the entry itself, a variable that is a whole word stays, because other programs than machinist
/// use it. `None` if they are no words of a script.
pub(super) fn kernel_arguments(options: &str, source: MenuSource) -> Option<KernelCommandLine> {
    let is_bls = source == MenuSource::BlsConfig;
    let words = options.split(' ').map(|word| match variable(word) {
        Some(name) if is_bls => format!("{VARIABLE}={name}"),
        _ => word.to_owned(),
    });
    let words: Vec<String> = words.collect();
    let options = words.join(" ");
    let config = OneEntry(&options, source);
    let boot = SimulatedGrub::new(&config, "").boot().ok()?;
    let text = boot.arguments().to_string();
    let words = text.split(' ').map(|word| {
        let name = word.strip_prefix(VARIABLE)?.strip_prefix('=');
        name.map(|name| format!("${name}"))
    });
    let words = words.zip(text.split(' '));
    let words: Vec<String> = words
        .map(|(variable, word)| variable.unwrap_or_else(|| word.to_owned()))
        .collect();
    Some(KernelCommandLine::parse(&words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_boot_loader::grub::script_words;

    #[test]
    fn arguments_survive_the_script_language_of_grub() {
        let hard = "a=$root b=a;b&c|d<e>f c=a#b d=*?[x]{y} \"e=a  $b\" f=\"c d\" g=`x` g=1 g=2 g=1";
        let hard = KernelCommandLine::parse(hard);
        let words = script_words(&hard).unwrap();
        let found = kernel_arguments(&words, MenuSource::GrubConfig);
        assert_eq!(found, Some(hard.clone()));
        // blscfg replaces the variable within quotes as well.
        let found = kernel_arguments(&words, MenuSource::BlsConfig);
        assert_ne!(found, Some(hard.clone()));
        let entry = "rw $ignition_firstboot a=\"b $c\" ${tuned_params} 'd  $e'";
        let found = kernel_arguments(entry, MenuSource::BlsConfig).unwrap();
        assert_eq!(
            found.to_string(),
            "rw $ignition_firstboot \"a=b \" $tuned_params \"d  \""
        );
        let plain = KernelCommandLine::parse(&hard.to_string().replace('$', ""));
        let words = script_words(&plain).unwrap();
        let found = kernel_arguments(&words, MenuSource::BlsConfig);
        assert_eq!(found, Some(plain));
        let (own, selector) = without_selector(&KernelCommandLine::parse("a ostree=/x b"));
        assert_eq!(own, KernelCommandLine::parse("a b"));
        assert_eq!(selector.as_deref(), Some("/x"));
    }
}
