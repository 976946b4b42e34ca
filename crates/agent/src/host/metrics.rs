//! Reads facts about the running machine, for readiness gates and status. A fact that the kernel does not offer is
//! `None`, not an error.

use std::time::Duration;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use machinist_base::abs_path::AbsPath;

/// Facts about the machine at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMetrics {
    /// The running kernel's release, such as `6.1.0-18-amd64`.
    pub kernel: Option<String>,
    /// Time since the kernel was started.
    pub uptime: Option<Duration>,
    /// Average number of tasks that run or wait, over 1, 5 and 15 minutes.
    pub load: Option<[f64; 3]>,
    /// Memory and swap, in bytes.
    pub memory: Option<MemoryStats>,
    /// Stalls by lack of CPU, memory and I/O.
    pub pressure: Pressures,
    /// The machine's mounts; `None` if they cannot be read.
    pub mounts: Option<Vec<MountInfo>>,
    /// `vm.overcommit_memory`: 0 is a heuristic, 1 always overcommits, 2 never overcommits.
    pub overcommit_memory: Option<u32>,
    /// `vm.panic_on_oom`: above 0 the kernel panics where it would otherwise kill a process.
    pub panic_on_oom: Option<u32>,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// All that the kernel manages.
    pub total: u64,
    /// Memory that a new program could get without swapping.
    pub available: u64,
    /// All swap.
    pub swap_total: u64,
    /// Unused swap.
    pub swap_free: u64,
}

/// Pressure of each kind; `None` if the kernel does not measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressures {
    /// `/proc/pressure/cpu`
    pub cpu: Option<Pressure>,
    /// `/proc/pressure/memory`
    pub memory: Option<Pressure>,
    /// `/proc/pressure/io`
    pub io: Option<Pressure>,
}

/// One file of pressure stall information (Documentation/accounting/psi.rst of the kernel).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// Time in which at least one task stalled.
    pub some: Stall,
    /// Time in which all tasks stalled; older kernels do not report it for the CPU.
    pub full: Option<Stall>,
}

/// Share of time that tasks lost to stalls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// Percent over the last 10 seconds.
    pub avg10: f64,
    /// Percent over the last minute.
    pub avg60: f64,
    /// Percent over the last 5 minutes.
    pub avg300: f64,
    /// Total time since boot.
    pub total: Duration,
}

/// One line of `mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// The mount point.
    pub point: String,
    /// The directory of the file system that is mounted.
    pub root: String,
    /// The file system's type, such as `ext4`.
    pub kind: String,
    /// The source that was passed to mount(2): a device or a share.
    pub source: String,
    /// Whether the mount or its file system is read-only.
    pub read_only: bool,
}

impl HostMetrics {
    /// Reads the facts. `read` returns the text of a file below the machine's root, or `None` if it is missing or
    /// the kernel refuses to read it (`EOPNOTSUPP` with `psi=0`).
    pub fn read(read: impl Fn(&AbsPath) -> Option<String>) -> Self {
        let text = |path: &str| read(&AbsPath::new(path).ok()?);
        let pressure = |path| Pressure::parse(&text(path)?);
        let number = |path| text(path)?.trim().parse().ok();
        Self {
            kernel: System::kernel_version().ok(),
            uptime: System::uptime().ok().map(Duration::from_secs),
            load: System::load_average()
                .ok()
                .map(|it| [it.one, it.five, it.fifteen]),
            memory: MemoryStats::read(),
            pressure: Pressures {
                cpu: pressure("/proc/pressure/cpu"),
                memory: pressure("/proc/pressure/memory"),
                io: pressure("/proc/pressure/io"),
            },
            // Reads PID 1's mounts, because the sandbox of machinist's unit may make its own mounts read-only.
            mounts: text("/proc/1/mountinfo").map(|it| MountInfo::parse_all(&it)),
            overcommit_memory: number("/proc/sys/vm/overcommit_memory"),
            panic_on_oom: number("/proc/sys/vm/panic_on_oom"),
        }
    }

    /// Returns whether `/` is read-only; `None` if that is unknown. File systems that are read-only by design, as
    /// on image-based systems, count as writable here.
    pub fn root_read_only(&self) -> Option<bool> {
        const READ_ONLY_BY_DESIGN: [&str; 4] = ["overlay", "erofs", "squashfs", "iso9660"];
        // A later mount hides earlier ones at the same mount point.
        let mut mounts = self.mounts.iter().flatten().rev();
        let root = mounts.find(|it| it.point == "/")?;
        Some(root.read_only && !READ_ONLY_BY_DESIGN.contains(&root.kind.as_str()))
    }
}

impl MemoryStats {
    fn read() -> Option<Self> {
        let only_memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
        let system = System::new_with_specifics(only_memory).ok()?;
        Some(Self {
            total: system.total_memory(),
            available: system.available_memory(),
            swap_total: system.total_swap(),
            swap_free: system.free_swap(),
        })
    }
}

impl Pressure {
    /// Parses a PSI file; returns `None` if a required value is missing. Skips unknown lines and keys.
    pub fn parse(text: &str) -> Option<Self> {
        let stall = |kind: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            Stall::parse(lines.find(|(name, _)| *name == kind)?.1)
        };
        Some(Self {
            some: stall("some")?,
            full: stall("full"),
        })
    }
}

impl Stall {
    fn parse(fields: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut pairs = fields
                .split_whitespace()
                .filter_map(|it| it.split_once('='));
            Some(pairs.find(|(name, _)| *name == key)?.1)
        };
        Some(Self {
            avg10: value("avg10")?.parse().ok()?,
            avg60: value("avg60")?.parse().ok()?,
            avg300: value("avg300")?.parse().ok()?,
            total: Duration::from_micros(value("total")?.parse().ok()?),
        })
    }
}

impl MountInfo {
    /// Parses the mounts in the order of the text. Skips malformed lines.
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        // Any number of optional fields precede the lone dash.
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point, options) = (mount.next()?, mount.next()?, mount.next()?);
        let mut file_system = file_system.split(' ');
        let (kind, source) = (file_system.next()?, file_system.next()?);
        let own_options = file_system.next()?;
        let read_only = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            point: unescaped(point),
            root: unescaped(root),
            kind: kind.to_owned(),
            source: unescaped(source),
            read_only: read_only(options) || read_only(own_options),
        })
    }
}

/// Decodes the kernel's octal escapes of space, tab, line feed, and backslash: a backslash and three digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|it| u8::from_str_radix(it, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests;
