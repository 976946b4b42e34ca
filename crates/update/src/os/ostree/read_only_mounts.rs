//! Changes files where /boot or /sysroot is mounted read-only, as on Fedora CoreOS.
//!
//! libostree does so in a mount namespace of its own, and so does this: a program remounts the file system there, and
//! every other process still sees it read-only.

use std::time::Duration;

use super::{OSTREE, OSTREE_TIMEOUT, OstreeProvider, RpmOstree, error::OstreeError};
use crate::os::{
    BackgroundError, HostCommand,
    grub::{NEW_SUFFIX, NewGrubFile, flush, mount_of, mounts, real_path},
    host_detection::is_there,
};
use machinist_base::abs_path::AbsPath;

/// Starts a program in a new mount namespace.
pub(super) const UNSHARE: &str = "/usr/bin/unshare";

/// The file system with the repository.
const SYSROOT: &str = "/sysroot";

/// Has the files that GRUB reads.
const BOOT: &str = "/boot";

/// The new content of a file.
const SOURCE: &str = "/run/machinist/grub-file";

/// Added to the name of a file for the one that it replaces.
const FORMER_SUFFIX: &str = ".machinist-former";

/// Copies the file `$2` to `$3`, with the mode of `$4` if that exists.
const COPY: &str = r#"set -e
mount -o remount,rw "$1"
cp --preserve=mode "$2" "$3"
test ! -e "$4" || chmod --reference="$4" "$3"
sync "$3"
"#;

/// Moves the file `$2` over `$3`, whose former inode stays as `$4`. An EFI system partition has no hard links.
const MOVE: &str = r#"set -e
mount -o remount,rw "$1"
rm -f "$4"
test ! -e "$3" || ln "$3" "$4" || :
mv -f "$2" "$3"
sync -f "$3"
"#;

/// Creates the empty file `$2`.
const CREATE: &str = r#"set -e
mount -o remount,rw "$1"
: >"$2"
"#;

/// Removes the file `$2`.
const REMOVE: &str = r#"set -e
mount -o remount,rw "$1"
rm -f "$2"
sync -f "$1"
"#;

/// Runs a program with its arguments.
const RUN: &str = r#"mount -o remount,rw "$1" && shift && exec "$@""#;

/// The arguments of unshare that run a script with the mount point as `$1`.
fn unshare<'a>(script: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "--mount",
        "--propagation",
        "private",
        "/bin/sh",
        "-c",
        script,
        "sh",
    ];
    all.extend(rest);
    all
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// The mount point of a file, if it is mounted read-only.
    pub(super) fn read_only_mount(&self, file: &str) -> Option<String> {
        let mounts = mounts(&self.root);
        let mount = mount_of(&mounts, file).filter(|mount| mount.is_read_only);
        mount.map(|mount| mount.point.to_owned())
    }

    pub(super) async fn write_grub_file(&self, new: &NewGrubFile) -> Result<(), OstreeError> {
        let file = self.link_target(&new.file);
        match self.read_only_mount(&file) {
            None => Ok(new.write(&self.root, &self.commands).await?),
            Some(point) => self.write_read_only(&point, &new.text, &file).await,
        }
    }

    /// As for a writable file system, GRUB finds the former or the new file after a power cut.
    async fn write_read_only(
        &self,
        point: &str,
        text: &str,
        file: &str,
    ) -> Result<(), OstreeError> {
        let [new, former] = [NEW_SUFFIX, FORMER_SUFFIX].map(|suffix| format!("{file}{suffix}"));
        self.write_run_file(SOURCE, text)?;
        self.unshare(file, COPY, &[point, SOURCE, &new, file])
            .await?;
        self.flush_boot().await?;
        self.unshare(file, MOVE, &[point, &new, file, &former])
            .await?;
        self.flush_boot().await?;
        self.remove_marker(&former).await
    }

    /// The file to which a link leads: it is replaced, and the link stays.
    fn link_target(&self, file: &str) -> String {
        let path = AbsPath::new(file).ok();
        let path = path.and_then(|path| real_path(&self.root, &path));
        path.map_or_else(|| file.to_owned(), |path| path.to_string())
    }

    /// Removes what an interrupted write of a file has left.
    pub(super) async fn remove_interrupted_write(&self, file: &str) -> Result<(), OstreeError> {
        let file = self.link_target(file);
        for suffix in [NEW_SUFFIX, FORMER_SUFFIX] {
            self.remove_marker(&format!("{file}{suffix}")).await?;
        }
        Ok(())
    }

    /// Writes changes in /boot to where GRUB, which does not read a journal, finds them.
    pub(super) async fn flush_boot(&self) -> Result<(), OstreeError> {
        match AbsPath::new(BOOT) {
            Ok(boot) => Ok(flush(&self.root, &self.commands, &boot).await?),
            Err(_) => Ok(()),
        }
    }

    /// Creates an empty file that marks a state.
    pub(super) async fn create_marker(&self, file: &str) -> Result<(), OstreeError> {
        match (self.read_only_mount(file), AbsPath::new(file)) {
            (None, Ok(path)) => self.root.replace(&path, b"", 0o644)?,
            (None, Err(_)) => {}
            (Some(point), _) => self.unshare(file, CREATE, &[&point, file]).await?,
        }
        self.flush_boot().await
    }

    pub(super) async fn remove_marker(&self, file: &str) -> Result<(), OstreeError> {
        if !is_there(&self.root, file) {
            return Ok(());
        }
        let Some(point) = self.read_only_mount(file) else {
            return match AbsPath::new(file) {
                Ok(path) => Ok(self.root.remove_file(&path)?),
                Err(_) => Ok(()),
            };
        };
        self.unshare(file, REMOVE, &[&point, file]).await
    }

    /// Runs a script that changes a file, with the mount point of its file system as `$1`.
    pub(super) async fn unshare(
        &self,
        file: &str,
        script: &str,
        rest: &[&str],
    ) -> Result<(), OstreeError> {
        let arguments = unshare(script, rest);
        let done = self.commands.run(UNSHARE, &arguments, OSTREE_TIMEOUT).await;
        done.map_err(|source| OstreeError::Write {
            file: file.to_owned(),
            source,
        })
    }

    /// The program that runs `ostree`. Most of its commands remount /sysroot themselves, but the extension for container
    /// images does not.
    pub(super) fn ostree_program(&self) -> &'static str {
        match self.read_only_mount(SYSROOT) {
            Some(_) => UNSHARE,
            None => OSTREE,
        }
    }

    /// The arguments of that program for a command of `ostree`.
    fn ostree_arguments<'a>(&self, arguments: &[&'a str]) -> Vec<&'a str> {
        match self.ostree_program() {
            UNSHARE => {
                let mut rest = vec![SYSROOT, OSTREE];
                rest.extend(arguments);
                unshare(RUN, &rest)
            }
            _ => arguments.to_vec(),
        }
    }

    /// Runs a command of `ostree` that changes the repository.
    pub(super) async fn run_ostree(
        &self,
        arguments: &[&str],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let all = self.ostree_arguments(arguments);
        let program = self.ostree_program();
        self.commands.run(program, &all, OSTREE_TIMEOUT).await
    }

    /// Runs one that takes long.
    pub(super) async fn run_ostree_in_background(
        &self,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<(), BackgroundError> {
        let all = self.ostree_arguments(arguments);
        self.run_in_background(self.ostree_program(), &all, limit)
            .await
    }
}
