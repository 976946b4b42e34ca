//! Finds settings for which systemd does not load a unit, or cannot start its program.

use super::{
    enablement::{self, unit_name},
    unit_catalog::UnitCatalog,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{FILE_MODE, UnitFile, UnitName, service_fault};

/// The settings of which a timer needs one (systemd.timer(5)).
const TIMER_VALUES: [&str; 6] = [
    "OnActiveSec",
    "OnBootSec",
    "OnStartupSec",
    "OnUnitActiveSec",
    "OnUnitInactiveSec",
    "OnCalendar",
];

/// The same, if they are true.
const TIMER_FLAGS: [&str; 2] = ["OnClockChange", "OnTimezoneChange"];

/// The settings of which a socket needs one (systemd.socket(5)).
const LISTEN_KEYS: [&str; 8] = [
    "ListenStream",
    "ListenDatagram",
    "ListenSequentialPacket",
    "ListenFIFO",
    "ListenSpecial",
    "ListenNetlink",
    "ListenMessageQueue",
    "ListenUSBFunction",
];

/// The settings of which a path unit needs one (systemd.path(5)).
const WATCH_KEYS: [&str; 5] = [
    "PathExists",
    "PathExistsGlob",
    "PathChanged",
    "PathModified",
    "DirectoryNotEmpty",
];

/// The settings of a service that are commands.
const COMMAND_KEYS: [&str; 7] = [
    "ExecCondition",
    "ExecStartPre",
    "ExecStart",
    "ExecStartPost",
    "ExecReload",
    "ExecStop",
    "ExecStopPost",
];

/// The directories of the files from which Podman's generator creates services.
const QUADLET_DIRS: [&str; 2] = ["/etc/containers/systemd", "/usr/share/containers/systemd"];

/// The execute bits of a mode.
const EXECUTE_BITS: u32 = 0o111;

/// The warnings about one unit with its drop-ins.
pub(super) fn warnings(unit: &str, file: &UnitFile, catalogue: &UnitCatalog<'_>) -> Vec<String> {
    let fault = lacks_setting(unit, file).or_else(|| bad_service(unit, file, catalogue));
    let mut all: Vec<String> = fault
        .into_iter()
        .map(|why| format!("systemd does not load {unit}: {why}"))
        .collect();
    if unit_name::kind(unit) == "service" {
        all.extend(not_executable(unit, file, catalogue));
    }
    all
}

/// A warning for each unit that the config enables and that Podman's generator creates at boot from
/// another file of the config: enabling it has no effect.
pub(super) fn quadlets(catalogue: &UnitCatalog<'_>) -> Vec<String> {
    let units = catalogue.config.units.iter();
    let enabled = units.filter(|(_, unit)| unit.enabled == Some(true) && unit.contents.is_none());
    let sources = |name: &UnitName| {
        let mut files = catalogue.config.files.keys();
        let source = files.find(|path| quadlet_service(path).as_deref() == Some(name.as_str()))?;
        Some(format!(
            "{name} is created by a generator from {source}: it is enabled by [Install] in that file"
        ))
    };
    enabled.filter_map(|(name, _)| sources(name)).collect()
}

/// The service that Podman's generator creates from a file (podman-systemd.unit(5)).
fn quadlet_service(file: &AbsPath) -> Option<String> {
    if !QUADLET_DIRS.contains(&file.directory()) {
        return None;
    }
    let (stem, kind) = file.file_name().rsplit_once('.')?;
    match kind {
        "container" | "kube" => Some(format!("{stem}.service")),
        "pod" | "volume" | "network" | "image" | "build" => Some(format!("{stem}-{kind}.service")),
        _ => None,
    }
}

/// What a unit lacks, or has in its name, for which systemd refuses it.
fn lacks_setting(unit: &str, file: &UnitFile) -> Option<String> {
    let has = |section: &str, keys: &[&str]| {
        let mut keys = keys.iter();
        keys.any(|key| file.last(section, key).is_some())
    };
    let flagged = || {
        let mut flags = TIMER_FLAGS.iter();
        flags.any(|key| file.last("Timer", key).is_some_and(enablement::yes))
    };
    let why = match unit_name::kind(unit) {
        "timer" if !has("Timer", &TIMER_VALUES) && !flagged() => {
            "it has no On…= setting, such as OnCalendar="
        }
        "socket" if !has("Socket", &LISTEN_KEYS) => {
            "it has no Listen…= setting, such as ListenStream="
        }
        "path" if !has("Path", &WATCH_KEYS) => {
            "it has no path to watch, such as PathExists= or DirectoryNotEmpty="
        }
        "mount" if !has("Mount", &["What"]) => "it has no What=",
        "slice" if !is_slice_name(unit_name::stem(unit)) => {
            "a slice is named after its parents (a-b.slice is in a.slice), and this name is not"
        }
        _ => return None,
    };
    Some(why.to_owned())
}

/// Whether systemd accepts the name of a slice, given without its type: names of slices, joined by
/// single dashes. `-` is the root slice.
fn is_slice_name(stem: &str) -> bool {
    stem == "-" || (!stem.contains('@') && stem.split('-').all(|part| !part.is_empty()))
}

/// What systemd refuses in a service. A service of the config's own units without a command is
/// refused elsewhere.
fn bad_service(unit: &str, file: &UnitFile, catalogue: &UnitCatalog<'_>) -> Option<String> {
    if unit_name::kind(unit) != "service" {
        return None;
    }
    let bus = file.last("Service", "Type") == Some("dbus");
    if bus && file.last("Service", "BusName").is_none() {
        return Some("Type=dbus needs BusName=".to_owned());
    }
    for (key, command) in commands(file) {
        let program = command.program;
        if program.contains('/') && !program.starts_with(['/', '%', '$']) && !command.may_fail {
            return Some(format!("{key}={program} is not an absolute path"));
        }
    }
    let mut units = catalogue.config.units.iter();
    let own = units.any(|(name, entry)| name.as_str() == unit && entry.contents.is_some());
    let instances = || catalogue.tree.has_drop_ins_of_instances(unit);
    let brought = UnitName::new(unit).is_ok_and(|name| catalogue.has_file(&name));
    if own || !brought || instances() {
        return None;
    }
    Some(format!("it {}", service_fault(file)?))
}

/// A command of a service whose program is a file of the config without an execute bit: the start
/// fails with 203/EXEC.
fn not_executable(unit: &str, file: &UnitFile, catalogue: &UnitCatalog<'_>) -> Option<String> {
    commands(file).find_map(|(key, command)| {
        let program = AbsPath::new(command.program).ok()?;
        let (path, mode) = catalogue.mode_of_file(&program)?;
        (mode & EXECUTE_BITS == 0).then(|| {
            format!(
                "{unit} cannot run {key}={program}: the config gives {path} the mode {mode:04o}, \
                 without an execute bit; expected 0755"
            )
        })
    })
}

impl UnitCatalog<'_> {
    /// The path and mode of the config's file at this path of the machine.
    fn mode_of_file(&self, program: &AbsPath) -> Option<(&AbsPath, u32)> {
        let canonical = &self.observed.canonical;
        let mut files = self.config.files.iter();
        let (path, file) = files.find(|(path, _)| {
            *path == program || canonical.get(*path).is_some_and(|real| real == program)
        })?;
        let usual = file.content.is_some().then_some(FILE_MODE);
        Some((path, file.mode.or(usual)?))
    }
}

/// One command line of a service.
struct Command<'a> {
    program: &'a str,
    /// Whether systemd ignores it if it is faulty.
    may_fail: bool,
}

/// The commands of a service with their keys.
fn commands(file: &UnitFile) -> impl Iterator<Item = (&'static str, Command<'_>)> {
    COMMAND_KEYS.into_iter().flat_map(|key| {
        let lines = file.values("Service", key).into_iter();
        lines.map(move |line| (key, command(line)))
    })
}

fn command(line: &str) -> Command<'_> {
    let bare = line.trim_start_matches(['-', '@', ':', '+', '!', '|']);
    let prefixes = &line[..line.len() - bare.len()];
    let program = match bare.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => bare.split([' ', '\t']).next(),
    };
    Command {
        program: program.unwrap_or_default(),
        may_fail: prefixes.contains('-'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_named_after_their_parents() {
        for (stem, good) in [
            ("-", true),
            ("a", true),
            ("a-b", true),
            ("a--b", false),
            ("a-", false),
            ("-a", false),
            ("a@b", false),
        ] {
            assert_eq!(is_slice_name(stem), good, "{stem}");
        }
    }

    #[test]
    fn the_program_of_a_command_follows_its_prefixes() {
        for (line, program, may_fail) in [
            ("/bin/a b", "/bin/a", false),
            ("-/bin/a", "/bin/a", true),
            ("!!/bin/a", "/bin/a", false),
            ("\"/opt/a b\" c", "/opt/a b", false),
            ("", "", false),
        ] {
            let found = command(line);
            assert_eq!(
                (found.program, found.may_fail),
                (program, may_fail),
                "{line}"
            );
        }
    }

    #[test]
    fn services_of_quadlets_are_named_as_podman_names_them() {
        for (file, service) in [
            ("/etc/containers/systemd/web.container", Some("web.service")),
            ("/etc/containers/systemd/web.pod", Some("web-pod.service")),
            ("/etc/containers/systemd/web.conf", None),
            ("/etc/web.container", None),
        ] {
            let found = quadlet_service(&AbsPath::new(file).unwrap());
            assert_eq!(found.as_deref(), service, "{file}");
        }
    }
}
