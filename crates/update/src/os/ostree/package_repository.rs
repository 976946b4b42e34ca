//! The repository of an image with the packages of extensions, on the disk of the host.

use std::time::Duration;

use super::{OstreeProvider, RpmOstree};
use crate::os::{HostCommand, OsError};
use machinist_base::abs_path::AbsPath;
use machinist_plan::ImageRef;
use machinist_rootfs::{Root, RootError};

const SHELL: &str = "/bin/sh";

/// Where the repositories of images are, each in a directory that the digest of its image names.
const REPOSITORIES: &str = "/var/lib/machinist/os-extensions";

/// Selects the repository for rpm-ostree, while a transaction needs it.
const REPOSITORY_FILE: &str = "/etc/yum.repos.d/machinist-os-extensions.repo";

/// Copies the repository of the image `$1` to the directory `$2`, and removes other repositories. The image stays only if
/// it was there before. podman enforces containers-policy.json(5).
const EXTRACT: &str = r#"set -e
image=$1 directory=$2
container=machinist-os-extensions
pulled=/var/lib/machinist/os-extensions-pulled
shift 2
for auth in /run/ostree/auth.json /etc/ostree/auth.json /usr/lib/ostree/auth.json; do
  if test -e "$auth"; then
    set -- --authfile "$auth"
    break
  fi
done
clean() {
  podman rm --force --ignore "$container" >/dev/null || :
  if test -e "$pulled"; then
    podman rmi "$(cat "$pulled")" >/dev/null || :
    rm -f "$pulled"
  fi
  rm -rf "${directory%/*}"/*.new
}
# An earlier run may have been killed.
clean
trap clean EXIT
trap 'exit 1' TERM INT
if ! podman image exists "$image"; then
  echo "$image" >"$pulled"
  podman pull --quiet "$@" "$image" >/dev/null
fi
podman create --name "$container" --network=none "$image" true >/dev/null
rm -rf "${directory%/*}"
mkdir -p "$directory.new"
podman cp "$container:/usr/share/rpm-ostree/extensions/." "$directory.new"
sync -f "$directory.new"
mv "$directory.new" "$directory"
"#;

fn directory(image: &ImageRef) -> Option<AbsPath> {
    let digest = image.digest().to_string();
    let (_, hex) = digest.split_once(':')?;
    AbsPath::new(format!("{REPOSITORIES}/{hex}")).ok()
}

/// Whether the repository of an image is complete on the disk.
pub(super) fn is_extracted(root: &Root, image: &ImageRef) -> bool {
    directory(image).is_some_and(|path| matches!(root.stat(&path), Ok(Some(_))))
}

/// Whether the repository of an image has a package; false if the repository is not on the disk.
pub(super) fn has_package(root: &Root, image: Option<&ImageRef>, name: &str) -> bool {
    let Some(directory) = image.and_then(directory) else {
        return false;
    };
    let prefix = format!("{name}-");
    let files = root.list(&directory).unwrap_or_default();
    files.iter().any(|file| file.name.starts_with(&prefix))
}

/// Selects the repository of an image, or none, for the next transaction of rpm-ostree.
pub(super) fn select(root: &Root, image: Option<&ImageRef>) -> Result<(), RootError> {
    let Ok(file) = AbsPath::new(REPOSITORY_FILE) else {
        return Ok(());
    };
    let Some(directory) = image.and_then(directory) else {
        return match root.stat(&file)? {
            Some(_) => root.remove_file(&file),
            None => Ok(()),
        };
    };
    // The digest of the image covers the packages.
    let text = format!(
        "# Written by machinist while rpm-ostree adds packages.\n\
         [machinist-os-extensions]\n\
         name=OS extensions\n\
         baseurl=file://{directory}\n\
         gpgcheck=0\n\
         metadata_expire=1\n\
         skip_if_unavailable=0\n"
    );
    root.replace(&file, text.as_bytes(), 0o644)
}

/// Removes all repositories.
pub(super) fn remove_all(root: &Root) -> Result<(), RootError> {
    select(root, None)?;
    let Ok(directory) = AbsPath::new(REPOSITORIES) else {
        return Ok(());
    };
    match root.stat(&directory)? {
        Some(_) => root.remove_tree(&directory),
        None => Ok(()),
    }
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Copies the repository of an image to the disk, unless it is there.
    pub(super) async fn extract_repository(
        &self,
        image: &ImageRef,
        limit: Duration,
    ) -> Result<(), OsError> {
        let Some(directory) = directory(image).filter(|_| !is_extracted(&self.root, image)) else {
            return Ok(());
        };
        let (name, directory) = (image.to_string(), directory.to_string());
        let arguments = ["-c", EXTRACT, "sh", &name, &directory];
        let extracted = self.run_in_background(SHELL, &arguments, limit).await;
        match extracted {
            Ok(()) => Ok(()),
            Err(error) => Err(self.download_error(image, error, limit).await),
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the script runs on real files with a podman of the test"
)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

    use super::*;

    /// Runs the script with a podman that copies one package, and then fails if `fails`.
    fn extract(directory: &Path, repository: &str, fails: bool) -> bool {
        let programs = directory.join("bin");
        fs::create_dir_all(&programs).unwrap();
        let code = i32::from(fails);
        let podman = format!(
            "#!/bin/sh\nif [ \"$1\" = cp ]; then\n  touch \"$3/a-1.rpm\"\n  exit {code}\nfi\n"
        );
        let program = programs.join("podman");
        fs::write(&program, podman).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let root = directory.to_str().unwrap();
        let script = EXTRACT.replace("/var/lib/machinist", root);
        let path = format!("{}:/usr/bin:/bin", programs.display());
        let target = format!("{root}/os-extensions/{repository}");
        let arguments = ["-c", &script, "sh", "q.io/os-extensions", &target];
        let run = Command::new(SHELL)
            .args(arguments)
            .env("PATH", path)
            .status();
        run.unwrap().success()
    }

    #[test]
    fn a_copy_that_fails_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let repositories = directory.path().join("os-extensions");
        // Power was cut during an earlier one.
        fs::create_dir_all(repositories.join("cd.new")).unwrap();
        assert!(!extract(directory.path(), "ab", true));
        assert_eq!(fs::read_dir(&repositories).unwrap().count(), 0);
        assert!(extract(directory.path(), "ab", false));
        assert!(repositories.join("ab/a-1.rpm").exists());
        assert!(extract(directory.path(), "cd", false));
        let names: Vec<_> = fs::read_dir(&repositories)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["cd"]);
    }
}
