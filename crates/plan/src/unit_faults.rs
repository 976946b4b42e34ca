//! Finds settings for which systemd does not load a unit, or cannot start its program.

use super::{
    enablement::unit_name,
    exec_lines::{self, LineVerdict},
    unit_catalog::UnitCatalog,
    unit_values,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{FILE_MODE, UnitFile, UnitName, service_fault};

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

/// The types of services that have one command.
const SINGLE_COMMAND_TYPES: [&str; 7] = [
    "simple",
    "exec",
    "forking",
    "dbus",
    "notify",
    "notify-reload",
    "idle",
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
        let content = catalogue.config.files.get(source);
        let content = content.and_then(|file| file.content.as_ref()?.bytes());
        let text = String::from_utf8_lossy(content.unwrap_or_default());
        let has_install = text.lines().any(|line| line.trim() == "[Install]");
        let then = match has_install {
            true => "the [Install] section there enables it already",
            false => "add [Install] to that file",
        };
        Some(format!(
            "{name} cannot be enabled directly, because a generator creates it from {source}: {then}"
        ))
    };
    enabled.filter_map(|(name, _)| sources(name)).collect()
}

/// Whether Podman's generator creates the unit from a file of the config.
pub(super) fn is_quadlet(name: &str, catalogue: &UnitCatalog<'_>) -> bool {
    let mut files = catalogue.config.files.keys();
    files.any(|path| quadlet_service(path).as_deref() == Some(name))
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
    let why = match unit_name::kind(unit) {
        "timer" => return unit_values::timer_fault(file),
        "socket" => return unit_values::socket_fault(file),
        "path" => return unit_values::path_fault(file),
        "mount" if file.last("Mount", "What").is_none() => "it has no What=",
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
    if let Some(fault) = bad_command(file).or_else(|| bad_combination(file)) {
        return Some(fault);
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

/// A command line for which systemd refuses the service, or the lack of any that it does not ignore.
fn bad_command(file: &UnitFile) -> Option<String> {
    let mut started = 0;
    for (key, line) in lines(file) {
        match exec_lines::verdict(line) {
            LineVerdict::Refused(why) => return Some(format!("{key}={line} is not valid: {why}")),
            LineVerdict::Commands(count) if key == "ExecStart" => started += count,
            _ => {}
        }
    }
    let kind = file.last("Service", "Type").unwrap_or("simple");
    let has_other = !file.values("Service", "ExecStop").is_empty()
        || file.last("Unit", "SuccessAction").is_some();
    match (started, file.values("Service", "ExecStart").len()) {
        (2.., 1) if SINGLE_COMMAND_TYPES.contains(&kind) => {
            Some("it starts several commands, which only Type=oneshot may have".to_owned())
        }
        (0, 1..) if !has_other => {
            Some("its ExecStart= is not valid, and is ignored because of the -".to_owned())
        }
        _ => None,
    }
}

/// Settings that exclude each other.
fn bad_combination(file: &UnitFile) -> Option<String> {
    let last = |key| file.last("Service", key);
    match (last("Type"), last("Restart"), last("KillMode")) {
        (Some("oneshot"), Some(restart @ ("always" | "on-success")), _) => Some(format!(
            "Restart={restart} is not allowed with Type=oneshot"
        )),
        (_, _, Some(mode @ ("process" | "none"))) if last("PAMName").is_some() => {
            Some(format!("KillMode={mode} is not allowed with PAMName="))
        }
        _ => None,
    }
}

/// A command of a service whose program is a file of the config without an execute bit: the start
/// fails with 203/EXEC.
fn not_executable(unit: &str, file: &UnitFile, catalogue: &UnitCatalog<'_>) -> Option<String> {
    let commands = lines(file).flat_map(|(key, line)| {
        let commands = exec_lines::commands(line).into_iter();
        commands.map(move |command| (key, command))
    });
    commands.into_iter().find_map(|(key, command)| {
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

/// The command lines of a service with their keys.
fn lines(file: &UnitFile) -> impl Iterator<Item = (&'static str, &str)> {
    COMMAND_KEYS.into_iter().flat_map(|key| {
        let lines = file.values("Service", key).into_iter();
        lines.map(move |line| (key, line))
    })
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
