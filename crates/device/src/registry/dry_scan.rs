//! One-off checks and scans for the command line, without a running registry.

use std::time::Duration;

use super::{
    config_files::{read_file, read_files},
    declaration_dirs,
    scan::{Scan, Scanner, UnitStates},
};
use crate::{
    Allowances, Refusal,
    declaration::{self, Declaration},
    discovery::{FlapStates, merge},
    inventory::Inventory,
    registry_state::{ConfigFiles, RegistryState},
    resource_name::ResourceName,
    source::ResourceSource,
    vendor_declaration,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::Root;

/// The text of a declaration, or why an agent of this user would not read it. Errors name the file as
/// `shown`.
pub fn text_of(root: &Root, file: &AbsPath, shown: &str) -> Result<String, Refusal> {
    let refused = |why: &str| Refusal::new(Reason::SourceUnreadable, why).file(shown);
    let user = nix::unistd::geteuid().as_raw();
    match read_file(root, file, user) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(refused("not found")),
        Err(why) => Err(refused(&why)),
    }
}

/// The inventory that a declaration would give on this machine now, or all errors in it. `text` is
/// its content; `file` only identifies it, and errors name it as `shown`. Other declarations are
/// ignored.
///
/// Devices that the declaration names but that do not exist are included as missing.
pub fn check(
    root: &Root,
    (file, shown): (&AbsPath, &str),
    text: &str,
    allowances: &Allowances,
) -> Result<Inventory, Vec<Refusal>> {
    let declaration = declaration::parse(shown, text, allowances)?;
    let discovered = scan(root, std::iter::once(&declaration));
    let discovered = discovered
        .discoveries
        .into_values()
        .next()
        .unwrap_or_default();
    let merged = merge(
        None,
        &declaration,
        &discovered,
        &mut FlapStates::new(),
        (Duration::ZERO, false),
    );
    let resource = declaration.offer(ResourceSource::File(file.clone()), merged.devices);
    let problems = merged
        .problems
        .into_iter()
        .map(|problem| match problem.file {
            Some(_) => problem,
            None => problem.file(shown),
        })
        .collect();
    Ok(Inventory {
        resources: [(resource.name.clone(), resource.into())].into(),
        problems,
        allocation_disabled: None,
        taints: declaration.taint.iter().cloned().collect(),
        stop_units: declaration.stop_units.iter().cloned().collect(),
        probed_units: declaration.probed_units().map(str::to_owned).collect(),
    })
}

/// Conflicts with other declarations and vendors of this root that may offer the same resource.
/// `file` itself, as a path in the root, is ignored; errors name it as `shown`.
pub fn conflicting_sources(
    root: &Root,
    (file, shown): (&AbsPath, &str),
    resource: &ResourceName,
) -> Vec<Refusal> {
    let user = nix::unistd::geteuid().as_raw();
    let mut rivals = Vec::new();
    let mut rival = |message: String| {
        let refusal = Refusal::new(Reason::EntryDuplicate, message);
        rivals.push(refusal.field("spec.resource").file(shown));
    };
    let others = read_files(root, &declaration_dirs(), user);
    for (other, text) in others.iter().filter(|(other, _)| *other != file) {
        let Ok(text) = text else { continue };
        let read = declaration::parse(other.as_str(), text, &Allowances::default());
        if read.is_ok_and(|other| other.resource == *resource) {
            rival(format!(
                "{resource} is already declared in {other}; the first declaration takes precedence"
            ));
        }
    }
    let dirs = vendor_declaration::VENDOR_DIRS.iter();
    let dirs: Vec<_> = dirs.filter_map(|dir| AbsPath::new(*dir).ok()).collect();
    for (other, text) in &read_files(root, &dirs, user) {
        let Ok(text) = text else { continue };
        let read = vendor_declaration::parse(other.as_str(), text);
        if let Ok(vendor) = read
            && vendor.may_claim(resource)
        {
            let name = vendor.name;
            rival(format!(
                "vendor {name} may also offer {resource} ({other}); the first offer takes precedence"
            ));
        }
    }
    rivals
}

/// The current inventory of this root's declarations, without a running agent.
pub fn list(root: &Root, allowances: Allowances) -> Inventory {
    let user = nix::unistd::geteuid().as_raw();
    let files: ConfigFiles = read_files(root, &declaration_dirs(), user);
    let mut state = RegistryState::new(allowances);
    state.set_files(files);
    let discovered = scan(root, state.in_force());
    state.record_scan(&discovered.discoveries, Duration::ZERO, false);
    state.inventory()
}

fn scan<'a>(root: &Root, declarations: impl Iterator<Item = &'a Declaration>) -> Scan {
    Scanner::new(root.clone()).scan(declarations, &UnitStates::new(), &Inventory::default())
}
