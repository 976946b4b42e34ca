//! Prints what a boot of the files in a directory would start: `simulated_boot grub|systemd-boot DIRECTORY`.
//!
//! The directory is the root of the file system that has `/boot/grub` or, for systemd-boot, the EFI system partition.
//! The first line is the kernel command line; a line for the kernel and one for each initial RAM disk follow. EFI
//! variables are taken to be unset.

use std::{
    error::Error,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::{
    grub::{GrubFiles, SimulatedGrub},
    systemd_boot::{LoaderFiles, LoaderVariables, MenuEntry, SimulatedSystemdBoot},
};
use machinist_rootfs::Root;

const USAGE: &str = "usage: simulated_boot grub|systemd-boot DIRECTORY";

/// Maximum length of a file, which may be an initial RAM disk.
const MAX_BYTES: u64 = 1 << 30;

/// Files below a directory; a symbolic link to an absolute path leads to one below it, too.
struct Below(Root);

impl Below {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let path = AbsPath::new(format!("/{}", path.trim_start_matches('/'))).ok()?;
        self.0.read(&path, MAX_BYTES).ok()
    }
}

impl GrubFiles for Below {
    fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.read(path)?).ok()
    }

    fn size(&self, path: &str) -> Option<u64> {
        u64::try_from(self.read(path)?.len()).ok()
    }

    fn is_directory(&self, path: &str) -> bool {
        let path = AbsPath::new(path).ok();
        path.is_some_and(|path| self.0.is_dir(&path).unwrap_or_default())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = AbsPath::new(path)
            .ok()
            .and_then(|path| self.0.list(&path).ok());
        let entries = entries.unwrap_or_default().into_iter();
        entries.map(|entry| entry.name).collect()
    }
}

impl LoaderFiles for Below {
    fn loader_config(&self) -> Option<String> {
        self.text("/loader/loader.conf")
    }

    fn entries(&self) -> Vec<(String, String)> {
        let read = |name: String| {
            let text = self.text(&format!("/loader/entries/{name}"))?;
            Some((name, text))
        };
        self.list("/loader/entries")
            .into_iter()
            .filter_map(read)
            .collect()
    }

    fn has_kernel(&self, entry: &MenuEntry) -> bool {
        let kernel = entry.kernel.as_deref();
        kernel.is_none_or(|kernel| self.size(kernel).is_some())
    }
}

/// The command line, the kernel and the initial RAM disks.
fn boot(loader: &str, files: &Below) -> Result<Vec<String>, Box<dyn Error>> {
    let (command_line, kernel, initrds) = match loader {
        "grub" => {
            let boot = SimulatedGrub::new(files, "/boot/grub").boot()?;
            (boot.command_line, boot.kernel, boot.initrds)
        }
        "systemd-boot" => {
            let menu = SimulatedSystemdBoot::new(files, &LoaderVariables::default(), "x64");
            let entry = menu.next().ok_or("no menu entry")?.clone();
            let kernel = entry.kernel.ok_or("the entry starts no kernel")?;
            (entry.options, kernel, entry.initrds)
        }
        _ => return Err(USAGE.into()),
    };
    let mut lines = vec![command_line, kernel];
    lines.extend(initrds);
    match lines[1..].iter().find(|file| files.size(file).is_none()) {
        Some(missing) => Err(format!("{missing} does not exist").into()),
        None => Ok(lines),
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, loader, directory] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let files = Below(Root::open(Path::new(directory))?);
    let lines = boot(loader, &files)?;
    Ok(writeln!(io::stdout(), "{}", lines.join("\n"))?)
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error of this write cannot be reported.
            let _ = writeln!(io::stderr(), "simulated_boot: {error}");
            ExitCode::FAILURE
        }
    }
}
