//! Validates a parsed vendor declaration: all rules that its schema cannot express.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    KIND, ResourceNamePattern, Vendor, VendorLimits, VendorTransport,
    schema::{self, VendorDoc},
};
use crate::{
    Refusal, cdi::CdiKind, glob::Glob, inventory::ServeMode, resource_name::ResourceName,
    yaml::Refusals,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The maximum length of any list in the file.
const MAX_ENTRIES: usize = 64;
/// The maximum number of devices: a larger offer would exceed the memory reserved for a vendor.
const MAX_DEVICES: usize = 2000;
/// The maximum number of resources: each one has its own server and socket.
const MAX_RESOURCES: usize = 64;
/// The name of the lock file in the parent directory of the plugins' directories.
const RESERVED_NAME: &str = "lock";
/// The maximum length of a vendor's name, which is a DNS label and the name of a directory.
const MAX_VENDOR_NAME_BYTES: usize = 63;

const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// The maximum grace period: during it pods are placed on devices that may not work.
const MAX_GRACE: Duration = Duration::from_secs(60 * 60);
/// The maximum deadline: the kubelet admits one pod at a time and waits for the answer.
const MAX_DEADLINE: Duration = Duration::from_secs(10 * 60);

pub(super) fn check(file: VendorDoc) -> Result<Vendor, Vec<Refusal>> {
    let mut check = VendorValidator(Refusals::default());
    check.0.head((&file.api_version, &file.kind), KIND);
    let spec = file.spec;
    let vendor = Vendor {
        name: check.name(file.metadata.name, spec.connects),
        connects: spec.connects,
        serve: check.serve(spec.serve, spec.connects),
        users: check.users(spec.users),
        group: check.group(spec.group),
        resources: check.claims(spec.resources),
        devices: check.devices(spec.devices),
        mounts: check.mounts(spec.mounts),
        cdi: check.cdi(spec.cdi),
        grace: check.time("spec.grace", spec.grace, DEFAULT_GRACE, MAX_GRACE),
        deadline: check.time(
            "spec.deadline",
            spec.deadline,
            DEFAULT_DEADLINE,
            MAX_DEADLINE,
        ),
        limits: check.limits(&spec.limits),
    };
    if check.0.0.is_empty() {
        Ok(vendor)
    } else {
        Err(check.0.0)
    }
}

/// Collects refusals, so that the author sees all of them at once.
struct VendorValidator(Refusals);

impl VendorValidator {
    fn name(&mut self, name: String, connects: VendorTransport) -> String {
        if (name.as_str(), connects) == (RESERVED_NAME, VendorTransport::Plugin) {
            let message = format!("{name:?} is a reserved directory name of machinist");
            self.0.value("metadata.name", message, "another name");
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let ends = [name.bytes().next(), name.bytes().last()];
        let whole = name.bytes().all(|byte| plain(byte) || byte == b'-');
        if name.len() > MAX_VENDOR_NAME_BYTES
            || !whole
            || !ends.into_iter().all(|end| end.is_some_and(plain))
        {
            let expected =
                "1 to 63 lower-case letters, digits and -, with a letter or digit at both ends";
            self.0.value(
                "metadata.name",
                format!("{name:?} is not a valid name"),
                expected,
            );
        }
        name
    }

    /// Refuses a proxied plugin with DRA: its answers are made for the device plugin API and are
    /// passed on unchanged.
    fn serve(&mut self, serve: ServeMode, connects: VendorTransport) -> ServeMode {
        if (serve, connects) == (ServeMode::Dra, VendorTransport::Plugin) {
            let message = "serve: dra is not supported for a proxied device plugin";
            let expected = "serve: devicePlugin, or connects: program";
            let reason = Reason::FeatureUnsupported;
            self.0.refuse(reason, "spec.serve", message, expected);
        }
        serve
    }

    fn users(&mut self, given: Option<Vec<u32>>) -> Vec<u32> {
        let Some(users) = given else {
            return vec![0];
        };
        self.count("spec.users", users.len(), 1..=MAX_ENTRIES);
        for (at, user) in users.iter().enumerate() {
            self.id(&format!("spec.users[{at}]"), *user);
        }
        users
    }

    fn group(&mut self, given: u32) -> u32 {
        self.id("spec.group", given);
        given
    }

    /// Checks a user or group id. The highest number means "do not change" in chown(2).
    fn id(&mut self, field: &str, given: u32) {
        if given == u32::MAX {
            let expected = format!("0 to {}", u32::MAX - 1);
            self.0
                .value(field, format!("{given} is not a valid ID"), &expected);
        }
    }

    fn claims(&mut self, given: Vec<String>) -> Vec<ResourceNamePattern> {
        self.count("spec.resources", given.len(), 1..=MAX_ENTRIES);
        let each = given.into_iter().enumerate();
        each.filter_map(|(at, text)| self.claim(at, text)).collect()
    }

    /// Checks a pattern. The `*` may only replace the end of the name after the slash, since other
    /// domains belong to other vendors.
    fn claim(&mut self, at: usize, text: String) -> Option<ResourceNamePattern> {
        let example = match text.strip_suffix('*') {
            Some(start) => format!("{start}x"),
            None => text.clone(),
        };
        match ResourceName::new(example) {
            Ok(_) => Some(ResourceNamePattern(text)),
            Err(error) => {
                let field = format!("spec.resources[{at}]");
                let expected = "domain/name, or domain/* for all names of the domain";
                self.0.value(&field, error.to_string(), expected);
                None
            }
        }
    }

    fn devices(&mut self, given: Vec<String>) -> Vec<Glob> {
        self.count("spec.devices", given.len(), 0..=MAX_ENTRIES);
        let each = given.into_iter().enumerate();
        each.filter_map(|(at, text)| self.glob(at, &text)).collect()
    }

    fn glob(&mut self, at: usize, text: &str) -> Option<Glob> {
        let fault = match Glob::new(text) {
            Ok(glob) if glob.as_str().starts_with("/dev/") => return Some(glob),
            Ok(_) => format!("{text:?} is not below /dev"),
            Err(error) => error.to_string(),
        };
        let expected = "an absolute path below /dev, with *, ? or [a-z] within components";
        let field = format!("spec.devices[{at}]");
        self.0.refuse(Reason::PathInvalid, &field, fault, expected);
        None
    }

    fn mounts(&mut self, given: Vec<String>) -> Vec<AbsPath> {
        self.count("spec.mounts", given.len(), 0..=MAX_ENTRIES);
        let mut mounts = Vec::new();
        for (at, text) in given.into_iter().enumerate() {
            let fault = match AbsPath::new(text) {
                Ok(path) if path == AbsPath::root() => "/ is too broad".to_owned(),
                Ok(path) => {
                    mounts.push(path);
                    continue;
                }
                Err(error) => error.to_string(),
            };
            let field = format!("spec.mounts[{at}]");
            self.0
                .refuse(Reason::PathInvalid, &field, fault, "an absolute path");
        }
        mounts
    }

    fn cdi(&mut self, given: Vec<String>) -> Vec<String> {
        self.count("spec.cdi", given.len(), 0..=MAX_ENTRIES);
        for (at, kind) in given.iter().enumerate() {
            if let Err(error) = CdiKind::new(kind) {
                let field = format!("spec.cdi[{at}]");
                self.0.value(&field, error.to_string(), "vendor/class");
            }
        }
        given
    }

    fn time(
        &mut self,
        field: &str,
        given: Option<String>,
        default: Duration,
        longest: Duration,
    ) -> Duration {
        let Some(text) = given else {
            return default;
        };
        let parsed = text.parse::<jiff::SignedDuration>().ok();
        let time = parsed.and_then(|time| Duration::try_from(time).ok());
        match time {
            Some(time) if (Duration::from_secs(1)..=longest).contains(&time) => time,
            _ => {
                let expected = format!("1s to {}s, such as 30s", longest.as_secs());
                let message = format!("{text:?} is not a valid duration");
                self.0.value(field, message, &expected);
                default
            }
        }
    }

    fn limits(&mut self, given: &schema::VendorLimitsDoc) -> VendorLimits {
        let default = VendorLimits::default();
        let limits = VendorLimits {
            devices: given.devices.unwrap_or(default.devices),
            resources: given.resources.unwrap_or(default.resources),
        };
        for (field, value, most) in [
            ("spec.limits.devices", limits.devices, MAX_DEVICES),
            ("spec.limits.resources", limits.resources, MAX_RESOURCES),
        ] {
            if !(1..=most).contains(&value) {
                let message = format!("{value} is not a valid limit");
                self.0.value(field, message, &format!("1 to {most}"));
            }
        }
        limits
    }

    fn count(&mut self, field: &str, count: usize, good: RangeInclusive<usize>) {
        if !good.contains(&count) {
            let (least, most) = (good.start(), good.end());
            let expected = format!("{least} to {most} entries");
            self.0.value(field, format!("{count} entries"), &expected);
        }
    }
}
