//! Paths below the state directory, and of the IDs of the machine.

use machinist_base::abs_path::AbsPath;

fn state(below: &str) -> AbsPath {
    AbsPath::root()
        .join(&format!("var/lib/machinist{below}"))
        .unwrap_or_else(|_| AbsPath::root())
}

/// `/var/lib/machinist`.
pub fn state_dir() -> AbsPath {
    state("")
}

/// The journal.
pub fn journal() -> AbsPath {
    state("/journal")
}

/// The held config.
pub fn pinned_config() -> AbsPath {
    state("/held")
}

/// The node's last known pool.
pub fn pool() -> AbsPath {
    state("/pool")
}

/// The units that were stopped for a shutdown that machinist did not request.
pub fn quiesced() -> AbsPath {
    state("/quiesced.json")
}

/// The images that machinist has protected from the kubelet's garbage collection.
pub fn pinned_images() -> AbsPath {
    state("/pinned-images.json")
}

/// The staging directories on the file system of the state directory.
pub fn staging() -> AbsPath {
    state("/tx")
}

/// The writer's lock.
pub fn lock() -> AbsPath {
    state("/lock")
}

/// The applied configs, by digest.
pub fn configs() -> AbsPath {
    state("/configs")
}

/// The contents of the files of applied configs.
pub fn contents() -> AbsPath {
    state("/contents")
}

/// The kernel's boot ID, relative to the root like all paths.
pub fn boot_id() -> AbsPath {
    AbsPath::root()
        .join("proc/sys/kernel/random/boot_id")
        .unwrap_or_else(|_| AbsPath::root())
}

/// The machine ID.
pub fn machine_id() -> AbsPath {
    AbsPath::root()
        .join("etc/machine-id")
        .unwrap_or_else(|_| AbsPath::root())
}
