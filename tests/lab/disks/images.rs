//! Disks in image files, and a recording of the data that has reached them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::support::{Dice, WORK, wait};

/// Where the disks of a machine are mounted, the root first.
pub(super) const DISKS: &[&str] = &["", "etc", "data"];
const BLOCK: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(super) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// Small, so that a copy is cheap; without deferred work of the kernel (lazy initialisation).
    fn make(self, image: &Path) {
        let image = path(image);
        match self {
            Self::Ext4 => {
                run("truncate", &["--size=24M", image]);
                let now = "lazy_itable_init=0,lazy_journal_init=0";
                let options = ["-q", "-F", "-b", "4096", "-E", now, image];
                run("mkfs.ext4", &options);
            }
            Self::Xfs => {
                let data = format!("file,name={image},size=32m");
                // mkfs.xfs refuses sizes below 300 MB without `--unsupported`; they are fine for
                // these disks.
                run("mkfs.xfs", &["-q", "-f", "--unsupported", "-d", &data]);
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    fn options(self) -> &'static str {
        match self {
            // Commits on request only, and not because the test is slow.
            Self::Ext4 => "commit=3600",
            Self::Xfs => "defaults",
        }
    }
}

/// A machine's disks, mounted or not, in a directory that is removed on drop.
#[derive(Debug)]
pub(super) struct Disks {
    kind: FileSystem,
    dir: PathBuf,
    /// Loop device and mount point, in the order of mounting.
    mounted: RefCell<Vec<(String, PathBuf)>>,
}

impl Disks {
    /// Creates disks that hold a copy of this tree, all of it durable, with no writes pending.
    pub(super) fn holding(kind: FileSystem, name: &str, tree: &Path) -> Self {
        let dir = Path::new(WORK).join(format!("{name}-{}", kind.name()));
        assert!(!dir.exists(), "{} exists: an earlier run?", dir.display());
        fs::create_dir_all(dir.join("top")).unwrap();
        let mounted = RefCell::default();
        let disks = Self { kind, dir, mounted };
        for disk in 0..DISKS.len() {
            kind.make(&disks.image(disk));
        }
        disks.mount();
        let (from, to) = (tree.join("."), disks.top());
        run("cp", &["--archive", path(&from), path(&to)]);
        for place in DISKS {
            // ext4 creates it; no config mentions it.
            let _ = fs::remove_dir(to.join(place).join("lost+found"));
        }
        disks.unmount();
        disks.mount();
        disks
    }

    pub(super) fn top(&self) -> PathBuf {
        self.dir.join("top")
    }

    pub(super) fn images(&self) -> Vec<PathBuf> {
        (0..DISKS.len()).map(|disk| self.image(disk)).collect()
    }

    fn image(&self, disk: usize) -> PathBuf {
        self.dir.join(format!("{disk}.img"))
    }

    /// Mounts the disks as a boot does: each file system replays its log.
    pub(super) fn mount(&self) {
        for (disk, place) in DISKS.iter().enumerate() {
            let image = self.image(disk);
            // Direct I/O bypasses the host's page cache, so the image file holds exactly what has
            // reached the device.
            let device = run(
                "losetup",
                &["--find", "--show", "--direct-io=on", path(&image)],
            );
            let device = device.trim().to_owned();
            let place = self.top().join(place);
            // Recorded first, so that the device is detached if the mount fails.
            self.mounted
                .borrow_mut()
                .push((device.clone(), place.clone()));
            fs::create_dir_all(&place).unwrap();
            let options = ["-t", self.kind.name(), "-o", self.kind.options()];
            run("mount", &[&options[..], &[&device, path(&place)]].concat());
        }
    }

    pub(super) fn unmount(&self) {
        while let Some((device, place)) = self.mounted.borrow_mut().pop() {
            run("umount", &[path(&place)]);
            // A machine that is starting may still hold a mount in its namespace that is unmounted
            // here.
            let mounted = || fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(
                !mounted().contains(&format!(" {device} ")),
                "{device} is mounted"
            );
            run("losetup", &["--detach", &device]);
            let number = device.trim_start_matches("/dev/");
            let backing = format!("/sys/block/{number}/loop/backing_file");
            wait::until("the disk to be let go", wait::seconds(60), || {
                !Path::new(&backing).exists()
            });
        }
    }

    /// Writes these contents to the disks, which must not be mounted.
    pub(super) fn load(&self, contents: &[Vec<u8>]) {
        for (disk, content) in contents.iter().enumerate() {
            let file = File::create(self.image(disk)).unwrap();
            file.set_len(content.len() as u64).unwrap();
            let blocks = content.chunks(BLOCK).enumerate();
            for (number, block) in blocks.filter(|(_, block)| **block != [0; BLOCK]) {
                file.write_all_at(block, (number * BLOCK) as u64).unwrap();
            }
        }
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for (device, place) in self.mounted.take().iter().rev() {
            let _ = Command::new("umount").arg(place).status();
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// What the kernel may do at any time: write one disk out, or commit its log and nothing else –
/// then names are durable before the content of files is.
pub(super) fn write_back(dice: &mut Dice, top: &Path) {
    let disk = dice.pick(DISKS.len());
    let at = File::open(top.join(DISKS[disk])).unwrap();
    match dice.pick(6) {
        0 => nix::unistd::syncfs(&at).unwrap(),
        1 | 2 => {
            at.set_modified(SystemTime::now()).unwrap();
            at.sync_all().unwrap();
        }
        _ => {}
    }
}

/// The content of all disks at each moment, from the first copy on.
#[derive(Debug)]
pub(super) struct DiskImages {
    /// Image and loop device of each disk.
    disks: Vec<(PathBuf, String)>,
    start: Vec<Vec<u8>>,
    /// The write counters of each device from the kernel, at the last copy.
    written: Vec<String>,
    now: Vec<Vec<u8>>,
    cuts: Vec<Cut>,
    pub(super) pictures: usize,
}

/// A copy that differs from the one before.
#[derive(Debug)]
struct Cut {
    what: String,
    /// Disk, block and its new content.
    blocks: Vec<(usize, usize, Vec<u8>)>,
}

impl DiskImages {
    pub(super) fn begin(disks: &Disks) -> Self {
        let devices = disks.mounted.borrow();
        let devices = devices.iter().map(|(device, _)| device.clone());
        let disks: Vec<_> = disks.images().into_iter().zip(devices).collect();
        let (written, start): (_, Vec<_>) = disks.iter().map(at_rest).unzip();
        let cut = Cut {
            what: "at the start".to_owned(),
            blocks: vec![],
        };
        Self {
            disks,
            now: start.clone(),
            start,
            written,
            cuts: vec![cut],
            pictures: 1,
        }
    }

    /// Copies the blocks that have changed on the disks.
    pub(super) fn capture(&mut self, what: &str) {
        self.pictures += 1;
        let mut blocks = Vec::new();
        for (disk, of) in self.disks.iter().enumerate() {
            if writes(&of.1).as_ref() == Some(&self.written[disk]) {
                continue;
            }
            let (written, content) = at_rest(of);
            self.written[disk] = written;
            let pairs = content.chunks(BLOCK).zip(self.now[disk].chunks(BLOCK));
            let changed = pairs.enumerate().filter(|(_, (new, old))| new != old);
            blocks.extend(changed.map(|(number, (new, _))| (disk, number, new.to_owned())));
            self.now[disk] = content;
        }
        if !blocks.is_empty() {
            let what = what.to_owned();
            self.cuts.push(Cut { what, blocks });
        }
    }

    /// The number of recorded states of the disks.
    pub(super) fn states(&self) -> usize {
        self.cuts.len()
    }

    /// Calls `see` once for every state of the disks, with a description, the number of disks that
    /// changed for it, and the content of all disks.
    pub(super) fn each(&self, mut see: impl FnMut(&str, usize, &[Vec<u8>])) {
        let mut contents = self.start.clone();
        for cut in &self.cuts {
            for (disk, number, block) in &cut.blocks {
                contents[*disk][number * BLOCK..][..block.len()].copy_from_slice(block);
            }
            let changed: BTreeSet<_> = cut.blocks.iter().map(|(disk, ..)| disk).collect();
            see(&cut.what, changed.len(), &contents);
        }
    }

    /// The final state, except that one disk has none of its writes.
    pub(super) fn end_without(&self, disk: usize) -> Vec<Vec<u8>> {
        let mut contents = self.now.clone();
        contents[disk].clone_from(&self.start[disk]);
        contents
    }
}

/// The content of an image while no writer is active, and the device's write counters.
fn at_rest((image, device): &(PathBuf, String)) -> (String, Vec<u8>) {
    wait::value("a disk to be at rest", wait::seconds(60), || {
        let before = writes(device)?;
        let content = fs::read(image).unwrap();
        (writes(device)? == before).then_some((before, content))
    })
}

/// The device's completed writes and their size, or `None` while a write is in flight.
fn writes(device: &str) -> Option<String> {
    let name = device.trim_start_matches("/dev/");
    let counts = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    // Documentation/block/stat.rst: writes are fields 5 to 7, discards 12 to 14, in flight 9.
    let counts: Vec<_> = counts.split_whitespace().collect();
    let written = [counts[4], counts[6], counts[11], counts[13]].join(" ");
    (counts[8] == "0").then_some(written)
}

fn run(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {command}: {error}"));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command} {arguments:?}: {printed}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().expect("the lab's paths are text")
}
