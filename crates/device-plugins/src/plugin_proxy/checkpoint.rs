//! The stored list of registered plugins. The next agent dials them again, so that plugins do not
//! notice the restart.

use serde::{Deserialize, Serialize};

use super::{VENDOR_DIRS_ROOT, Vendor, resource_instances};
use machinist_base::{
    abs_path::{AbsPath, BadPath},
    error_chain::chain,
};
use machinist_device::ResourceName;
use machinist_rootfs::{Root, RootError};

const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
const CHECKPOINT_VERSION: u32 = 1;
/// Bytes: a few hundred registrations.
const MAX_CHECKPOINT_BYTES: u64 = 256 * 1024;

/// One registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PluginRegistration {
    pub(super) resource: ResourceName,
    /// The file name of the plugin's socket.
    pub(super) endpoint: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckpointDoc {
    version: u32,
    boot_id: String,
    /// In the order of registration.
    registered: Vec<PluginRegistration>,
}

/// The registrations of one vendor. The file is kept next to the vendor's directory, where the
/// vendor cannot write.
#[derive(Debug)]
pub(super) struct PluginCheckpoint {
    root: Root,
    file: AbsPath,
    boot_id: String,
    registered: Vec<PluginRegistration>,
    /// The content of the file.
    on_disk: Option<Vec<PluginRegistration>>,
    /// The maximum number of registrations.
    max_registrations: usize,
}

/// A pending write. Writing blocks.
#[derive(Debug)]
pub(super) struct PendingWrite {
    root: Root,
    file: AbsPath,
    saved: CheckpointDoc,
}

/// The content of the file after a write.
pub(super) type WrittenState = Vec<PluginRegistration>;

impl PendingWrite {
    /// Writes the file durably.
    pub(super) fn write(self) -> Result<WrittenState, RootError> {
        // Names and numbers can always be encoded as JSON.
        let bytes = serde_json::to_vec(&self.saved).unwrap_or_default();
        self.root.replace(&self.file, &bytes, 0o600)?;
        Ok(self.saved.registered)
    }
}

impl PluginCheckpoint {
    /// Loads what an earlier agent of the same boot stored; plugins do not survive a reboot.
    pub(super) fn load(root: &Root, vendor: &Vendor) -> Result<Self, BadPath> {
        let boot_id = AbsPath::new(BOOT_ID_PATH)?;
        let boot_id = root.read_text(&boot_id, 128).unwrap_or_default();
        let mut checkpoint = Self {
            root: root.clone(),
            file: file(vendor)?,
            boot_id: boot_id.trim().to_owned(),
            registered: Vec::new(),
            on_disk: None,
            max_registrations: vendor.limits.resources * resource_instances::MAX_REGISTRATIONS,
        };
        match root.read_nofollow(&checkpoint.file, MAX_CHECKPOINT_BYTES) {
            Ok(bytes) => match serde_json::from_slice::<CheckpointDoc>(&bytes) {
                Ok(saved) => checkpoint.restore(saved),
                Err(error) => tracing::warn!("ignoring {}: {error}", checkpoint.file),
            },
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!("not dialling known plugins: {}", chain(&error)),
        }
        Ok(checkpoint)
    }

    fn restore(&mut self, saved: CheckpointDoc) {
        let same_boot = !self.boot_id.is_empty() && saved.boot_id == self.boot_id;
        if saved.version == CHECKPOINT_VERSION && same_boot {
            self.on_disk = Some(saved.registered.clone());
            self.registered = saved.registered;
            self.drop_oldest();
        }
    }

    /// Whether nothing was stored, so that every plugin has to register.
    pub(super) fn is_empty(&self) -> bool {
        self.on_disk.is_none()
    }

    pub(super) fn all(&self) -> &[PluginRegistration] {
        &self.registered
    }

    /// Adds a registration; the latest one counts.
    pub(super) fn add(&mut self, resource: &ResourceName, endpoint: &str) {
        self.remove(resource, endpoint);
        self.registered.push(PluginRegistration {
            resource: resource.clone(),
            endpoint: endpoint.to_owned(),
        });
        self.drop_oldest();
    }

    /// Drops the oldest registrations beyond the maximum.
    fn drop_oldest(&mut self) {
        let over = self.registered.len().saturating_sub(self.max_registrations);
        self.registered.drain(..over);
    }

    pub(super) fn remove(&mut self, resource: &ResourceName, endpoint: &str) {
        self.registered
            .retain(|one| one.resource != *resource || one.endpoint != endpoint);
    }

    /// Whether the file differs.
    pub(super) fn is_changed(&self) -> bool {
        self.on_disk.as_ref() != Some(&self.registered)
    }

    /// The write that is needed if the file differs.
    pub(super) fn pending_write(&self) -> Option<PendingWrite> {
        self.is_changed().then(|| PendingWrite {
            root: self.root.clone(),
            file: self.file.clone(),
            saved: CheckpointDoc {
                version: CHECKPOINT_VERSION,
                boot_id: self.boot_id.clone(),
                registered: self.registered.clone(),
            },
        })
    }

    /// Records a completed write.
    pub(super) fn record_written(&mut self, on_disk: WrittenState) {
        self.on_disk = Some(on_disk);
    }
}

fn file(vendor: &Vendor) -> Result<AbsPath, BadPath> {
    AbsPath::new(format!("{VENDOR_DIRS_ROOT}/{}.json", vendor.name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use machinist_device::{
        inventory::ServeMode,
        vendor_declaration::{VendorLimits, VendorTransport},
    };

    fn vendor() -> Vendor {
        Vendor {
            name: "acme".into(),
            connects: VendorTransport::Plugin,
            serve: ServeMode::DevicePlugin,
            users: vec![0],
            group: 0,
            resources: Vec::new(),
            devices: Vec::new(),
            mounts: Vec::new(),
            cdi: Vec::new(),
            grace: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            limits: VendorLimits::default(),
        }
    }

    fn boot(root: &Root, id: &str) {
        let path: AbsPath = BOOT_ID_PATH.parse().unwrap();
        root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
        root.replace(&path, id.as_bytes(), 0o644).unwrap();
    }

    #[test]
    fn registrations_survive_an_agent_restart_but_no_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        root.make_dirs(&VENDOR_DIRS_ROOT.parse().unwrap(), 0o755)
            .unwrap();
        boot(&root, "one");
        let load = || PluginCheckpoint::load(&root, &vendor()).unwrap();
        let mut checkpoint = load();
        assert!(checkpoint.is_empty());
        let gpu = ResourceName::new("acme.dev/gpu").unwrap();
        for endpoint in ["a.sock", "b.sock", "a.sock"] {
            checkpoint.add(&gpu, endpoint);
        }
        checkpoint.pending_write().unwrap().write().unwrap();
        let next = load();
        assert!(!next.is_empty() && !next.is_changed());
        let endpoints: Vec<_> = next.all().iter().map(|one| one.endpoint.as_str()).collect();
        assert_eq!(endpoints, ["b.sock", "a.sock"]);
        boot(&root, "two");
        assert!(load().is_empty() && load().all().is_empty());
    }

    #[test]
    fn registrations_are_limited_by_the_maximum_of_resources() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        root.make_dirs(&VENDOR_DIRS_ROOT.parse().unwrap(), 0o755)
            .unwrap();
        boot(&root, "one");
        let mut checkpoint = PluginCheckpoint::load(&root, &vendor()).unwrap();
        let gpu = ResourceName::new("acme.dev/gpu").unwrap();
        for round in 0..1000 {
            checkpoint.add(&gpu, &format!("{round}.sock"));
        }
        let max_registrations =
            VendorLimits::default().resources * resource_instances::MAX_REGISTRATIONS;
        assert_eq!(checkpoint.all().len(), max_registrations);
        assert_eq!(checkpoint.all()[max_registrations - 1].endpoint, "999.sock");
        // A registration during a write has to be written by the next one.
        let write = checkpoint.pending_write().unwrap();
        checkpoint.add(&gpu, "new.sock");
        checkpoint.record_written(write.write().unwrap());
        assert!(checkpoint.is_changed());
    }

    #[test]
    fn an_unreadable_plugin_checkpoint_is_treated_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        root.make_dirs(&VENDOR_DIRS_ROOT.parse().unwrap(), 0o755)
            .unwrap();
        boot(&root, "one");
        let path = file(&vendor()).unwrap();
        for torn in [
            "",
            "{",
            "{\"version\":2,\"bootId\":\"one\",\"registered\":[]}",
        ] {
            root.replace(&path, torn.as_bytes(), 0o600).unwrap();
            assert!(
                PluginCheckpoint::load(&root, &vendor()).unwrap().is_empty(),
                "{torn}"
            );
        }
    }
}
