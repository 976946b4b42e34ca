//! Random lists of kernel arguments on every kind of host: the kernel gets exactly what the config names, or the host
//! refuses the list.
//!
//! `ARGUMENT_SEED` and `ARGUMENT_ROUNDS` set the seed and the number of pairs of lists for each kind of host.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_ignition::{KernelArgument, KernelCommandLine, kernel_argument_fault};
use machinist_plan::OsUpdate;
use machinist_rootfs::Root;
use machinist_update::os::{DesiredDeployment, OsProvider as _};

use super::{
    contract::{Host, STEP_TIMEOUT},
    fedora_host::FedoraHost,
    fedora_machine::HOST_OPTIONS,
    grub_host::GrubHost,
    grub_machine::Initrd,
    ostree_files::Layout,
    ostree_host::OstreeHost,
    ostree_machine,
    systemd_boot_host::SystemdBootHost,
    systemd_boot_machine::HOST_ARGUMENTS,
};
use crate::plan::support::{Dice, from_environment};

/// What a value may consist of. Each alphabet has more characters that some loader cannot pass to a kernel.
const ALPHABETS: [&str; 4] = [
    "ab1=,:.-_/@%^+",
    "ab1=,:.-_@%^#!~*?[]{}()<>|&;`",
    "ab1=,:.-_@%^#!~*?[]{}()<>|&;`$",
    "ab1=,:.-_@%^#!~*?[]{}()<>|&;`$\\'\"",
];

/// Two are equal to the kernel, and some are those of the hosts.
const ARGUMENT_NAMES: &[&str] = &[
    "a", "b-c", "b_c", "mod.d", "quiet", "console", "e9", "nosmt",
];

/// The arguments with which a trial that fails restarts the machine.
const TRIAL_ARGUMENTS: [&str; 5] = [
    "panic=10",
    "rd.shell=0",
    "rd.emergency=reboot",
    "systemd.crash_reboot=1",
    "rd.timeout=300",
];

/// What Ubuntu's grub.cfg appends to the arguments of a boot without an initial RAM disk.
const WITHOUT_INITRD: &str = "panic=-1";

/// A kind of host, and its arguments before those of machinist.
struct Kind<H> {
    name: &'static str,
    host: &'static str,
    /// Those of machinist on a fresh one.
    own: &'static str,
    fresh: fn() -> H,
    directory: fn(&H) -> PathBuf,
    /// Whether the simulated host cannot read a list.
    excluded: fn(&[String]) -> bool,
}

/// The simulated libostree compares the parts of arguments that contain blanks, which are not equal in its other tests.
fn has_equal_parts(list: &[String]) -> bool {
    let list = KernelCommandLine::of(list);
    let host = KernelCommandLine::parse(ostree_machine::BEFORE);
    let texts: BTreeSet<&str> = list
        .iter()
        .chain(host.iter())
        .map(KernelArgument::as_str)
        .collect();
    let texts = texts.into_iter().map(|text| text.replace('"', ""));
    let (spaced, plain): (Vec<_>, Vec<_>) = texts.partition(|text| text.contains(' '));
    let mut seen: BTreeSet<String> = plain.into_iter().collect();
    let quoted = spaced.iter().map(|text| format!("'{text}'"));
    let parts = quoted.flat_map(|text| text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let mut parts = parts.filter(|part| !part.is_empty());
    parts.any(|part| !seen.insert(part))
}

fn nothing(_list: &[String]) -> bool {
    false
}

fn any_text(dice: &mut Dice, alphabet: &str, longest: usize) -> String {
    let characters: Vec<char> = alphabet.chars().collect();
    let length = dice.below(longest + 1);
    (0..length).map(|_| *dice.pick(&characters)).collect()
}

fn argument(dice: &mut Dice, alphabet: &str) -> String {
    let name = *dice.pick(ARGUMENT_NAMES);
    // Blanks are only within quotes.
    let spaced = format!("{alphabet}  ").replace('"', "");
    match dice.below(12) {
        0 | 1 => name.to_owned(),
        2..=5 => format!("{name}={}", any_text(dice, alphabet, 6)),
        6 | 7 => format!("{name}=\"{}\"", any_text(dice, &spaced, 8)),
        8 => {
            let name = match dice.one_in(3) {
                true => any_text(dice, &spaced, 3),
                false => name.to_owned(),
            };
            format!("\"{name}={}\"", any_text(dice, &spaced, 8))
        }
        9 => format!("x{}", any_text(dice, alphabet, 5)),
        10 => format!("{}x", any_text(dice, alphabet, 5)),
        _ => "--".to_owned(),
    }
}

/// A list of a config; every text has none of the faults that a config is refused for.
fn any_list(dice: &mut Dice) -> Vec<String> {
    let alphabet = *dice.pick(&ALPHABETS);
    let mut list: Vec<String> = Vec::new();
    for _ in 0..=dice.below(5) {
        let again = !list.is_empty() && dice.one_in(5);
        let next = match again {
            true => dice.pick(&list).clone(),
            false => argument(dice, alphabet),
        };
        if kernel_argument_fault(&next).is_none() {
            list.push(next);
        }
    }
    list
}

/// The content of every file that has one, and the target of every link.
fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(path, target.into_os_string().into_encoded_bytes());
            } else if path.is_dir() {
                open.push(path);
            } else {
                let content = fs::read(&path).unwrap();
                found.insert(path, content);
            }
        }
    }
    // A discarded entry leaves custom.cfg empty.
    found.retain(|_, content| !content.is_empty());
    found
}

/// Prints what is tried when an assertion of it, or of a simulated machine, fails.
struct Tried(String);

impl Drop for Tried {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// One host, on which lists replace each other.
struct Course<'k, H: Host> {
    kind: &'k Kind<H>,
    host: H,
    directory: PathBuf,
    /// The arguments of machinist now.
    own: KernelCommandLine,
}

impl<'k, H: Host> Course<'k, H> {
    fn new(kind: &'k Kind<H>) -> Self {
        let host = (kind.fresh)();
        Self {
            kind,
            directory: (kind.directory)(&host),
            own: KernelCommandLine::parse(kind.own),
            host,
        }
    }

    fn update(&self, list: &KernelCommandLine) -> OsUpdate {
        OsUpdate {
            remove_arguments: self.own.clone(),
            append_arguments: list.clone(),
            ..OsUpdate::default()
        }
    }

    /// Why a plan with the list is refused; `None` if it is accepted.
    fn refusal(&self, update: &OsUpdate) -> Option<machinist_ignition::Refusal> {
        let root = Root::open(&self.directory).unwrap();
        let can = self.host.agent().capabilities();
        machinist_update::os::refusal(&root, can, update)
    }

    /// The arguments that a kernel must get from a boot: those of the host, then the list.
    fn expected(&self, list: &KernelCommandLine) -> KernelCommandLine {
        let all: Vec<_> = list.iter().cloned().collect();
        let last = all.iter().enumerate().filter(|(at, one)| {
            // libostree keeps the last of several equal ones.
            H::KEEPS_EQUAL_ARGUMENTS || !all[at + 1..].contains(one)
        });
        let mut expected = KernelCommandLine::parse(self.kind.host);
        expected.append(&last.map(|(_, one)| one.clone()).collect());
        expected
    }

    /// The arguments of the running kernel, without those that loader and trial add; those of a trial must all be there
    /// or none.
    fn running(&self, is_trial: bool) -> KernelCommandLine {
        let line = fs::read_to_string(self.directory.join("proc/cmdline")).unwrap();
        let is_added = |one: &&KernelArgument| {
            let names = [
                "BOOT_IMAGE",
                "ostree",
                "panic",
                "rd.shell",
                "rd.emergency",
                "systemd.crash_reboot",
                "rd.timeout",
                "machinist.trial",
            ];
            names.contains(&one.name())
        };
        let all = KernelCommandLine::parse(&line);
        let added = all.iter().filter(|one| is_added(one));
        let added: Vec<&str> = added
            .filter(|one| !["BOOT_IMAGE", "ostree"].contains(&one.name()))
            .filter(|one| one.as_str() != WITHOUT_INITRD)
            .inspect(|one| assert!(!one.is_for_init(), "init gets {}", one.as_str()))
            .map(KernelArgument::as_str)
            .filter(|one| !one.starts_with("machinist.trial="))
            .collect();
        assert_eq!(
            added,
            TRIAL_ARGUMENTS[..if is_trial { TRIAL_ARGUMENTS.len() } else { 0 }]
        );
        assert_eq!(line.contains(" machinist.trial="), is_trial, "{line}");
        all.iter().filter(|one| !is_added(one)).cloned().collect()
    }

    /// A refused list is refused for good, by the name of an argument, and leaves nothing.
    async fn assert_refused(
        &self,
        list: &KernelCommandLine,
        refusal: &machinist_ignition::Refusal,
    ) {
        // Some messages quote the whole list, and some have the spelling of a running kernel.
        let plain = |text: &str| text.replace(['"', '\\'], "");
        let names = |text: &str| {
            let mut all = list.iter().map(KernelArgument::as_str);
            all.any(|one| plain(text).contains(&plain(one)))
        };
        let expected = Reason::NoProviderForKernelArguments;
        assert_eq!(refusal.reason, expected, "{refusal}");
        assert!(names(&refusal.message), "names none: {refusal}");
        let before = files_below(&self.directory);
        let wanted = DesiredDeployment::from(self.update(list));
        match self.host.agent().stage(&wanted, STEP_TIMEOUT).await {
            Err(error) => {
                assert!(!error.is_retryable(), "{error}");
                assert!(names(&chain(&error)), "names none: {}", chain(&error));
            }
            // What only a kept entry cannot have is known to the plan, which is asked before a list is staged.
            Ok(_) => self.host.agent().discard().await.unwrap(),
        }
        let after = files_below(&self.directory);
        let changed = after
            .iter()
            .filter(|(at, now)| before.get(*at) != Some(now));
        let changed: Vec<_> = changed.map(|(at, _)| at).collect();
        assert!(after == before, "changed or new: {changed:?}");
        assert_eq!(self.host.agent().observe().await.unwrap().staged, None);
    }

    /// Stages, tries and keeps an accepted list.
    async fn becomes(&mut self, list: KernelCommandLine, update: OsUpdate) {
        let expected = self.expected(&list);
        let is_same = self.expected(&self.own) == expected;
        let wanted = DesiredDeployment::from(update);
        let staged = self.host.agent().stage(&wanted, STEP_TIMEOUT).await;
        let staged = staged.unwrap_or_else(|error| panic!("was accepted: {}", chain(&error)));
        self.own = list;
        let Some(id) = staged else {
            assert!(is_same, "nothing was staged");
            return;
        };
        assert_eq!(self.running(false), self.expected_before(&wanted), "staged");
        self.host.agent().unlock(&id).await.unwrap();
        self.host.reboot();
        assert_eq!(self.running(true), expected, "the trial");
        let booted = self.host.agent().observe().await.unwrap().booted;
        assert_eq!(
            (booted.id, booted.kernel_arguments),
            (id.clone(), expected.clone())
        );
        self.host.agent().keep(&id).await.unwrap();
        for _ in 0..2 {
            self.host.reboot();
            assert_eq!(self.running(false), expected, "kept");
        }
    }

    /// The arguments of the deployment from which a change starts.
    fn expected_before(&self, change: &DesiredDeployment) -> KernelCommandLine {
        self.expected(&change.kernel_arguments.remove)
    }

    /// Returns whether the host accepts the list.
    async fn tries(&mut self, list: &[String], context: &str) -> bool {
        let _tried = Tried(format!(
            "{context}, {}: {list:?} after {}",
            self.kind.name, self.own
        ));
        let list = KernelCommandLine::of(list);
        let update = self.update(&list);
        match self.refusal(&update) {
            None => {
                self.becomes(list, update).await;
                true
            }
            Some(refusal) => {
                self.assert_refused(&list, &refusal).await;
                false
            }
        }
    }
}

/// Two lists after each other, and then none, on a fresh host in each round.
async fn lists_reach_the_kernel<H: Host>(kind: Kind<H>) {
    let seed = from_environment("ARGUMENT_SEED", 1);
    let first = from_environment("ARGUMENT_FIRST", 0);
    let rounds = from_environment("ARGUMENT_ROUNDS", 4);
    let (mut accepted, mut refused) = (0, 0);
    for round in first..first + rounds {
        let mut dice = Dice(seed.wrapping_mul(7_919).wrapping_add(round));
        let context = format!("ARGUMENT_SEED={seed} ARGUMENT_FIRST={round} ARGUMENT_ROUNDS=1");
        let mut course = Course::new(&kind);
        for _ in 0..2 {
            let lists = std::iter::repeat_with(|| any_list(&mut dice));
            let list = lists
                .into_iter()
                .find(|list| !(kind.excluded)(list))
                .unwrap();
            match course.tries(&list, &context).await {
                true => accepted += 1,
                false => refused += 1,
            }
        }
        assert!(course.tries(&[], &context).await, "{context}: the end");
        assert_eq!(
            course.running(false),
            KernelCommandLine::parse(kind.host),
            "{context}"
        );
    }
    assert!(
        accepted > refused / 8,
        "{}: {accepted} of {refused}",
        kind.name
    );
}

fn grub(name: &'static str, fresh: fn() -> GrubHost) -> Kind<GrubHost> {
    Kind {
        excluded: nothing,
        name,
        host: "root=UUID=1234 ro net.ifnames=0 quiet console=tty0",
        own: "audit=0 quiet",
        fresh,
        directory: |host| host.path(""),
    }
}

fn ostree(name: &'static str, fresh: fn() -> OstreeHost) -> Kind<OstreeHost> {
    Kind {
        name,
        host: ostree_machine::BEFORE,
        own: "",
        fresh,
        directory: |host| host.directory.path().to_owned(),
        excluded: has_equal_parts,
    }
}

#[tokio::test(start_paused = true)]
async fn random_lists_reach_the_kernel_through_grub_or_are_refused() {
    lists_reach_the_kernel(grub("Debian", GrubHost::new)).await;
    lists_reach_the_kernel(grub("Ubuntu", || GrubHost::with_initrd(Initrd::Unneeded))).await;
    let tried_without = || GrubHost::with_initrd(Initrd::TriedWithout);
    lists_reach_the_kernel(Kind {
        excluded: nothing,
        ..grub("Ubuntu with an initrd", tried_without)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn random_lists_reach_the_kernel_through_boot_entries_or_are_refused() {
    lists_reach_the_kernel(Kind {
        name: "Fedora",
        host: HOST_OPTIONS,
        own: "audit=0 quiet",
        fresh: FedoraHost::new,
        excluded: nothing,
        directory: |host| host.path(""),
    })
    .await;
    lists_reach_the_kernel(Kind {
        name: "systemd-boot",
        host: HOST_ARGUMENTS,
        own: "audit=0 quiet",
        fresh: SystemdBootHost::new,
        excluded: nothing,
        directory: |host| host.path(""),
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn random_lists_reach_the_kernel_of_a_deployment_or_are_refused() {
    lists_reach_the_kernel(ostree("OSTree", OstreeHost::new)).await;
    let bootc = || OstreeHost::with_layout(Layout::Bootc);
    lists_reach_the_kernel(ostree("bootc", bootc)).await;
}
