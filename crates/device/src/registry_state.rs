//! State of the device registry: the declarations in force, the owner of each resource
//! name, and the known devices.

mod removals;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Refusal,
    declaration::{self, Allowances, Declaration},
    discovery::{self, Discovery, FlapStates},
    inventory::{AllocationDisabled, Device, Health, Inventory, Resource},
    resource_name::ResourceName,
    source::ResourceSource,
    source_flap_detection::FlapTracker,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The version of [`RegistryCheckpoint`]. State of another version is not restored; it is only needed for a quick
/// start.
pub const CHECKPOINT_VERSION: u32 = 2;

/// The state that is saved for the next agent, which can then serve devices before its first scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryCheckpoint {
    /// [`CHECKPOINT_VERSION`].
    pub version: u32,
    /// The id of the boot in which it was written.
    pub boot_id: String,
    /// The text of each declaration in force, by file.
    pub declarations: BTreeMap<AbsPath, String>,
    /// All resources with their devices.
    #[serde(with = "shared")]
    pub resources: Vec<Arc<Resource>>,
}

/// Serializes resources by value. They are shared in memory, so that taking a copy of the state is
/// fast for any number of resources.
mod shared {
    use super::{Arc, Deserialize, Resource};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        all: &[Arc<Resource>],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(|one| &**one))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Arc<Resource>>, D::Error> {
        let all = Vec::<Resource>::deserialize(from)?;
        Ok(all.into_iter().map(Arc::new).collect())
    }
}

/// The text of each declaration file, or why it was refused.
pub type ConfigFiles = BTreeMap<AbsPath, Result<String, Refusal>>;

/// One declaration file.
#[derive(Debug, Default)]
struct DeclarationState {
    /// The last valid text and its parsed declaration.
    valid: Option<(String, Declaration)>,
    /// Problems of the current text; the last valid one stays in force until the file is repaired.
    problems: Vec<Refusal>,
    /// The text that `wrong` refers to.
    invalid_text: Option<String>,
    /// Set if `match` or `group` changed since the last scan: known devices may not belong to it any
    /// more.
    selectors_changed: bool,
}

/// The state of the registry. It does no I/O: the caller passes in files, scan results and times.
#[derive(Debug, Default)]
pub struct RegistryState {
    allowances: Allowances,
    sources: BTreeMap<AbsPath, DeclarationState>,
    /// The offers of live sources, in force or not.
    offers: BTreeMap<(ResourceSource, ResourceName), Arc<Resource>>,
    /// The presence of each device in these offers, for flap detection.
    flap_trackers: BTreeMap<(ResourceSource, ResourceName), FlapTracker>,
    owners: BTreeMap<ResourceName, ResourceSource>,
    resources: BTreeMap<ResourceName, Arc<Resource>>,
    flap_states: BTreeMap<ResourceName, FlapStates>,
    scan_problems: BTreeMap<ResourceName, Vec<Refusal>>,
    /// Problems that kept resources from being scanned.
    unscanned: Vec<Refusal>,
    allocation_disabled: Option<AllocationDisabled>,
}

impl RegistryState {
    /// A registry state without any resources.
    pub fn new(allowances: Allowances) -> Self {
        Self {
            allowances,
            ..Self::default()
        }
    }

    /// Restores the state that an earlier agent saved. Within the same boot all of it is kept; after
    /// a reboot only devices whose nodes `exists` finds are healthy.
    pub fn restore(
        &mut self,
        saved: RegistryCheckpoint,
        boot_id: &str,
        exists: impl Fn(&AbsPath) -> bool,
    ) {
        if saved.version != CHECKPOINT_VERSION {
            return;
        }
        // Each name keeps its owner; owners that do not exist any more are removed when the files are
        // read.
        let owned = saved.resources.iter();
        self.owners = owned
            .map(|one| (one.name.clone(), one.source.clone()))
            .collect();
        for resource in saved.resources.iter().filter(|one| one.source.is_live()) {
            let key = (resource.source.clone(), resource.name.clone());
            self.offers.insert(key, Arc::clone(resource));
        }
        self.set_files(
            saved
                .declarations
                .into_iter()
                .map(|(file, text)| (file, Ok(text)))
                .collect(),
        );
        for resource in saved.resources {
            let mut resource = Arc::unwrap_or_clone(resource);
            if saved.boot_id != boot_id {
                for device in resource.devices.values_mut() {
                    after_boot(device, &resource.source, &exists);
                }
            }
            if resource.source.is_live() {
                self.offer(resource, Duration::ZERO);
                continue;
            }
            let owner = self.owners.get(&resource.name);
            if owner.is_some_and(|owner| *owner == resource.source) {
                self.resources
                    .insert(resource.name.clone(), Arc::new(resource));
            }
        }
    }

    /// Records the complete offer of a live source under one name. Returns the owner of that name:
    /// the source itself, or another source, which keeps the name; the offer then waits until that
    /// one is removed.
    pub fn offer(&mut self, offer: impl Into<Arc<Resource>>, now: Duration) -> ResourceSource {
        let offer = offer.into();
        let (source, name) = (offer.source.clone(), offer.name.clone());
        let key = (source.clone(), name.clone());
        let before = self.offers.insert(key.clone(), Arc::clone(&offer));
        let tracker = self.flap_trackers.entry(key).or_default();
        tracker.record_offer(before.as_ref(), &offer, now);
        self.assign();
        self.owners.get(&name).cloned().unwrap_or(source)
    }

    /// Removes the offers of a live source: the one under `resource`, or all of them.
    pub fn withdraw(&mut self, source: &ResourceSource, resource: Option<&ResourceName>) {
        self.offers.retain(|(by, name), _| {
            by != source || resource.is_some_and(|resource| resource != name)
        });
        self.assign();
    }

    /// Removes the offers of a live source under names other than these.
    pub fn retain_offers(&mut self, source: &ResourceSource, names: &BTreeSet<ResourceName>) {
        self.offers
            .retain(|(by, name), _| by != source || names.contains(name));
        self.assign();
    }

    /// Makes devices of live sources allocatable again that have been present for long enough.
    /// Returns when to call this next.
    pub fn release_held_devices(&mut self, now: Duration) -> Option<Duration> {
        let mut again = None;
        for (key, tracker) in &mut self.flap_trackers {
            if let Some(offer) = self.offers.get(key) {
                let wait = tracker.update_holds(offer, now);
                again = [again, wait].into_iter().flatten().min();
            }
        }
        self.assign();
        again
    }

    /// The state to save for the next agent.
    pub fn save(&self, boot_id: &str) -> RegistryCheckpoint {
        let good = |(file, source): (&AbsPath, &DeclarationState)| {
            source
                .valid
                .as_ref()
                .map(|(text, _)| (file.clone(), text.clone()))
        };
        RegistryCheckpoint {
            version: CHECKPOINT_VERSION,
            boot_id: boot_id.to_owned(),
            declarations: self.sources.iter().filter_map(good).collect(),
            resources: self.resources.values().cloned().collect(),
        }
    }

    /// Records the current declaration files. Files that are not in `files` were removed.
    pub fn set_files(&mut self, files: ConfigFiles) {
        // Files of a directory that cannot be read are kept.
        let unread = |file: &AbsPath| {
            let dir = file.parent();
            dir.is_some_and(|dir| matches!(files.get(&dir), Some(Err(_))))
        };
        self.sources
            .retain(|file, _| files.contains_key(file) || unread(file));
        for (file, read) in files {
            let source = self.sources.entry(file.clone()).or_default();
            match read {
                Ok(text) => source.update(&file, text, &self.allowances),
                Err(refusal) => (source.problems, source.invalid_text) = (vec![refusal], None),
            }
        }
        self.assign();
    }

    /// Assigns one owner to each resource name: the current owner keeps it; otherwise the first path
    /// in order wins, so that `/etc` precedes `/run`.
    fn assign(&mut self) {
        let (sources, offers, owners) = (&self.sources, &self.offers, &mut self.owners);
        let offered = |by: &ResourceSource, name: &ResourceName| match by {
            ResourceSource::File(file) => {
                let good = sources.get(file).and_then(|source| source.valid.as_ref());
                good.is_some_and(|(_, declaration)| declaration.resource == *name)
            }
            by => offers.contains_key(&(by.clone(), name.clone())),
        };
        owners.retain(|name, by| offered(by, name));
        for (file, source) in sources {
            if let Some((_, declaration)) = &source.valid {
                owners
                    .entry(declaration.resource.clone())
                    .or_insert_with(|| ResourceSource::File(file.clone()));
            }
        }
        for ((by, name), offer) in offers {
            let owner = owners.entry(name.clone()).or_insert_with(|| by.clone());
            if owner == by {
                let key = (by.clone(), name.clone());
                let held = self
                    .flap_trackers
                    .get(&key)
                    .and_then(FlapTracker::with_holds);
                let shown = held.unwrap_or(offer);
                self.resources.insert(name.clone(), shown.clone());
            }
        }
        self.flap_trackers.retain(|key, _| offers.contains_key(key));
        let is_owned = |name: &ResourceName, resource: &Arc<Resource>| {
            owners.get(name).is_some_and(|by| *by == resource.source)
        };
        self.resources.retain(|name, one| is_owned(name, one));
        self.flap_states.retain(|name, _| owners.contains_key(name));
        self.scan_problems
            .retain(|name, _| owners.contains_key(name));
    }

    /// The declarations in force, one for each resource.
    pub fn in_force(&self) -> impl Iterator<Item = &Declaration> {
        self.owners
            .values()
            .filter_map(|by| declared(&self.sources, by))
            .map(|(_, declaration)| declaration)
    }

    /// Records what kept resources from being scanned; their devices stay unchanged.
    pub fn record_unscanned(&mut self, why: &[Refusal]) {
        self.unscanned.clear();
        self.unscanned.extend_from_slice(why);
    }

    /// Records the result of a scan. Returns when to scan next without an event.
    ///
    /// `forget` removes devices that do not exist any more, see [`discovery::merge`].
    pub fn record_scan(
        &mut self,
        discoveries: &BTreeMap<ResourceName, Discovery>,
        now: Duration,
        forget: bool,
    ) -> Option<Duration> {
        let mut again: Option<Duration> = None;
        for (name, by) in &self.owners {
            let (Some((file, declaration)), Some(seen)) =
                (declared(&self.sources, by), discoveries.get(name))
            else {
                continue;
            };
            let known = self.resources.get(name);
            let own = known.map(|known| match self.sources.get(file) {
                Some(source) if source.selectors_changed => {
                    Cow::Owned(by_path(&known.devices, declaration))
                }
                _ => Cow::Borrowed(&known.devices),
            });
            let flap_states = self.flap_states.entry(name.clone()).or_default();
            let merged = discovery::merge(
                own.as_deref(),
                declaration,
                seen,
                flap_states,
                (now, forget),
            );
            let resource = declaration.offer(by.clone(), merged.devices);
            // An unchanged resource keeps its `Arc`, so that comparisons stay cheap.
            if known.is_none_or(|known| **known != resource) {
                self.resources.insert(name.clone(), Arc::new(resource));
            }
            let in_file = |problem: Refusal| match problem.file {
                Some(_) => problem,
                None => problem.file(file.as_str()),
            };
            self.scan_problems.insert(
                name.clone(),
                merged.problems.into_iter().map(in_file).collect(),
            );
            again = [again, merged.rescan_in].into_iter().flatten().min();
        }
        let was_scanned = |source: &DeclarationState| {
            let good = source.valid.as_ref();
            good.is_some_and(|(_, one)| discoveries.contains_key(&one.resource))
        };
        for source in self.sources.values_mut() {
            source.selectors_changed &= !was_scanned(source);
        }
        again
    }

    /// Disables allocation of all devices, or enables it again.
    pub fn set_allocation_disabled(&mut self, allocation_disabled: Option<AllocationDisabled>) {
        self.allocation_disabled = allocation_disabled;
    }

    /// The current inventory.
    pub fn inventory(&self) -> Inventory {
        let wrong = self
            .sources
            .values()
            .flat_map(|source| source.problems.iter().cloned());
        let found = self.scan_problems.values().flatten().cloned();
        Inventory {
            resources: self.resources.clone(),
            problems: wrong
                .chain(self.conflicts())
                .chain(found)
                .chain(self.unscanned.iter().cloned())
                .collect(),
            allocation_disabled: self.allocation_disabled.clone(),
            stop_units: self
                .in_force()
                .flat_map(|declaration| declaration.stop_units.iter().cloned())
                .collect(),
            taints: self
                .in_force()
                .filter(|declaration| {
                    let resource = self.resources.get(&declaration.resource);
                    resource.is_some_and(|resource| resource.is_present())
                })
                .filter_map(|declaration| declaration.taint.clone())
                .collect(),
            probed_units: self
                .in_force()
                .flat_map(|declaration| declaration.probed_units().map(str::to_owned))
                .collect(),
        }
    }

    /// Reports each conflict for both sources, so that it shows up in either file.
    fn conflicts(&self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (file, source) in &self.sources {
            let Some((_, declaration)) = &source.valid else {
                continue;
            };
            let name = &declaration.resource;
            let mine = ResourceSource::File(file.clone());
            if let Some(owner) = self.owners.get(name).filter(|owner| **owner != mine) {
                refusals.extend(duplicates(name, owner, &mine));
            }
        }
        for (by, name) in self.offers.keys() {
            if let Some(owner) = self.owners.get(name).filter(|owner| *owner != by) {
                refusals.extend(duplicates(name, owner, by));
            }
        }
        refusals
    }
}

/// The declaration of this owner, if the owner is a file in force.
fn declared<'a>(
    sources: &'a BTreeMap<AbsPath, DeclarationState>,
    by: &ResourceSource,
) -> Option<(&'a AbsPath, &'a Declaration)> {
    let ResourceSource::File(file) = by else {
        return None;
    };
    let (file, source) = sources.get_key_value(file)?;
    let (_, declaration) = source.valid.as_ref()?;
    Some((file, declaration))
}

/// The devices that the declaration's path patterns still cover.
fn by_path(
    devices: &BTreeMap<String, Device>,
    declaration: &Declaration,
) -> BTreeMap<String, Device> {
    let covered = |device: &Device| {
        let mut nodes = device.nodes.iter();
        nodes.any(|node| declaration.paths().any(|glob| glob.matches(&node.host)))
    };
    let covered = devices.iter().filter(|(_, device)| covered(device));
    covered.map(|(id, one)| (id.clone(), one.clone())).collect()
}

fn duplicates(name: &ResourceName, owner: &ResourceSource, other: &ResourceSource) -> [Refusal; 2] {
    let problem = |message: String, at: &ResourceSource| {
        let problem = Refusal::new(Reason::EntryDuplicate, message);
        problem.field("spec.resource").file(at.to_string())
    };
    [
        problem(
            format!("{name} is already offered by {owner}, which takes precedence"),
            other,
        ),
        problem(
            format!("{name} is also offered by {other}, which is ignored"),
            owner,
        ),
    ]
}

fn after_boot(device: &mut Device, source: &ResourceSource, exists: impl Fn(&AbsPath) -> bool) {
    if device.health == Health::Missing {
        return;
    }
    let missing = device.nodes.iter().find(|node| !exists(&node.host));
    let why = match missing {
        // Only the live source knows the state of such a device after a reboot.
        _ if source.is_live() => format!("{source} has not connected since the machine started"),
        Some(node) => format!("{} not found since the machine started", node.host),
        None if device.nodes.is_empty() => {
            format!("{source}: not found since the machine started")
        }
        None => {
            (device.health, device.reason) = (Health::Healthy, None);
            return;
        }
    };
    (device.health, device.reason) = (Health::Unhealthy, Some(why));
}

impl DeclarationState {
    fn update(&mut self, file: &AbsPath, text: String, allowances: &Allowances) {
        let same = |known: Option<&String>| known == Some(&text);
        if same(self.invalid_text.as_ref()) {
            return;
        }
        if !same(self.valid.as_ref().map(|(text, _)| text)) {
            match declaration::parse(file.as_str(), &text, allowances) {
                Ok(declaration) => {
                    let before = self.valid.as_ref().map(|(_, before)| before);
                    let kept = before.is_none_or(|before| {
                        before.matches == declaration.matches && before.group == declaration.group
                    });
                    self.selectors_changed |= !kept;
                    self.valid = Some((text, declaration));
                }
                Err(wrong) => {
                    (self.problems, self.invalid_text) = (wrong, Some(text));
                    return;
                }
            }
        }
        (self.problems, self.invalid_text) = (Vec::new(), None);
    }
}

#[cfg(test)]
mod tests;
