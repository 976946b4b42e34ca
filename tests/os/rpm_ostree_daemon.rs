//! rpm-ostree on the files of a machine: commits with added packages, as its daemon makes them.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use machinist_base::digest::Digest;
use machinist_plan::ImageRef;
use machinist_update::os::{PackageChange, TransactionKind};
use zgvariant::{NATIVE_ENDIAN, Variant, serialized::Context, to_bytes};

use super::{
    ostree_files::{Files, LOCKED},
    ostree_registry::{OstreeRegistry, commit_of},
};

/// The reference with which machinist keeps the commit of a trial.
const REFERENCE: &str = "ostree/repo/refs/heads/machinist/layered";

/// The daemon, and the commits that it has made.
#[derive(Default)]
pub(crate) struct RpmOstreeDaemon {
    commits: Mutex<Vec<String>>,
    /// Packages that no repository has.
    missing: Mutex<BTreeSet<String>>,
    /// A deployment cannot be staged, which is found after its lock was written.
    pub(crate) is_failing_late: AtomicBool,
    /// Transactions, with the repositories that were selected.
    pub(crate) transactions: Mutex<Vec<(TransactionKind, String)>>,
}

/// The packages in a deployment's origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packages {
    pub(crate) requested: BTreeSet<String>,
    pub(crate) removed: BTreeSet<String>,
}

impl Packages {
    pub(crate) fn of_origin(origin: &str) -> Self {
        let list = |key: &str| {
            let line = origin.lines().find_map(|line| line.strip_prefix(key));
            let items = line.unwrap_or_default().split(';');
            let items = items.filter(|item| !item.is_empty());
            items.map(str::to_owned).collect()
        };
        Self {
            requested: list("requested="),
            removed: list("remove="),
        }
    }

    fn change(&mut self, change: &PackageChange) -> Result<(), String> {
        self.requested.extend(change.install.iter().cloned());
        self.requested
            .retain(|name| !change.uninstall.contains(name));
        for name in &change.remove {
            if !self.removed.insert(name.clone()) {
                return Err(format!("Override already exists for package '{name}'"));
            }
        }
        for name in &change.restore {
            if !self.removed.remove(name) {
                return Err(format!("No overrides for package '{name}'"));
            }
        }
        Ok(())
    }

    fn to_origin(&self, image: &str) -> String {
        let join = |all: &BTreeSet<String>| {
            let items: String = all.iter().map(|name| format!("{name};")).collect();
            items
        };
        let mut text = format!("[origin]\n{image}\n");
        if !self.requested.is_empty() {
            text.push_str(&format!(
                "\n[packages]\nrequested={}\n",
                join(&self.requested)
            ));
        }
        if !self.removed.is_empty() {
            text.push_str(&format!("\n[overrides]\nremove={}\n", join(&self.removed)));
        }
        text
    }
}

impl RpmOstreeDaemon {
    /// No repository has this package.
    pub(crate) fn lacks(&self, package: &str) {
        self.missing.lock().unwrap().insert(package.to_owned());
    }

    pub(super) fn transact(
        &self,
        files: &Files,
        registry: &OstreeRegistry,
        change: &PackageChange,
        kind: TransactionKind,
    ) -> Result<(), String> {
        let repository = files.read("etc/yum.repos.d/machinist-os-extensions.repo");
        self.transactions.lock().unwrap().push((kind, repository));
        let missing = self.missing.lock().unwrap();
        if let Some(name) = change.install.iter().find(|name| missing.contains(*name)) {
            return Err(format!("Packages not found: {name}"));
        }
        if let Some(image) = &change.image {
            let pull = ["pull", "--quiet", "/ostree/repo", image];
            registry.run(&files.directory, &pull)?;
        }
        if kind == TransactionKind::Stage && self.is_failing_late.load(Ordering::Relaxed) {
            files.write(LOCKED, "");
            return Err("fsync: Input/output error".to_owned());
        }
        match kind {
            TransactionKind::Download => {
                // It is computed from the next deployment, which is the staged one if there is one.
                let next = files
                    .staged()
                    .map_or_else(|| files.booted(), |(name, _)| name);
                let origin = files.read(&format!("ostree/deploy/debian/deploy/{next}.origin"));
                Packages::of_origin(&origin).change(change)
            }
            TransactionKind::Stage => self.stage(files, change),
        }
    }

    fn stage(&self, files: &Files, change: &PackageChange) -> Result<(), String> {
        assert_eq!(
            files.staged(),
            None,
            "it would be changed, not the running one"
        );
        let booted = files.booted();
        let origin = files.read(&format!("ostree/deploy/debian/deploy/{booted}.origin"));
        let before = origin.lines().nth(1).unwrap().to_owned();
        let mut packages = Packages::of_origin(&origin);
        packages.change(change)?;
        let image = change.image.as_ref();
        let line = image.map_or(before, |image| format!("container-image-reference={image}"));
        let base = match image {
            Some(image) => {
                let name = image.strip_prefix("ostree-unverified-registry:").unwrap();
                commit_of(&ImageRef::parse(name).unwrap())
            }
            None => self.base_of(files, booted.split('.').next().unwrap()),
        };
        let commit = match packages == Packages::default() {
            true => base,
            false => self.new_commit(files, &base, &packages),
        };
        if booted.starts_with(&commit) {
            return Ok(());
        }
        let name = files.new_deployment(&commit);
        let file = format!("ostree/deploy/debian/deploy/{name}.origin");
        files.write(&file, packages.to_origin(&line));
        let (_, options) = files
            .menu()
            .into_iter()
            .find(|(name, _)| *name == booted)
            .unwrap();
        let words: Vec<String> = options.split(' ').map(str::to_owned).collect();
        files.write_staged(&name, &words);
        files.write(LOCKED, "");
        files.overtake("stage");
        Ok(())
    }

    /// The commit to which packages were added, if that is one of the daemon's.
    fn base_of(&self, files: &Files, commit: &str) -> String {
        match self.commits.lock().unwrap().iter().any(|own| own == commit) {
            true => files.read(&format!("run/rpm-ostree-base/{commit}")),
            false => commit.to_owned(),
        }
    }

    fn new_commit(&self, files: &Files, base: &str, packages: &Packages) -> String {
        let digest = Digest::of(format!("{base} {packages:?}").as_bytes()).to_string();
        let commit = digest.strip_prefix("sha256:").unwrap().to_owned();
        let bytes = (0..base.len() / 2).map(|at| &base[2 * at..2 * at + 2]);
        let parent: Vec<u8> = bytes
            .map(|pair| u8::from_str_radix(pair, 16).unwrap())
            .collect();
        let metadata = HashMap::from([("rpmostree.clientlayer", Variant::from(true))]);
        let nothing: Vec<u8> = Vec::new();
        let related: Vec<(String, Vec<u8>)> = Vec::new();
        let object = (
            metadata, &parent, related, "", "", 0_u64, &nothing, &nothing,
        );
        let object = to_bytes(Context::new(NATIVE_ENDIAN, 0), &object).unwrap();
        files.write(&Self::object(&commit), &*object);
        files.write(&format!("run/rpm-ostree-base/{commit}"), base);
        self.commits.lock().unwrap().push(commit.clone());
        commit
    }

    fn object(commit: &str) -> String {
        format!(
            "ostree/repo/objects/{}/{}.commit",
            &commit[..2],
            &commit[2..]
        )
    }

    /// Removes the commits that neither a deployment nor machinist's reference has, as `ostree admin` does after each
    /// change of deployments.
    pub(super) fn prune(&self, files: &Files) {
        let kept = files.read(REFERENCE);
        let deployments = fs::read_dir(files.path("ostree/deploy/debian/deploy")).unwrap();
        let deployed: Vec<String> = deployments
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".origin"))
            .collect();
        for commit in self.commits.lock().unwrap().iter() {
            let is_deployed = deployed.iter().any(|name| name.starts_with(commit));
            if !is_deployed && kept.trim() != commit {
                let _ = fs::remove_file(files.path(&Self::object(commit)));
            }
        }
    }

    /// Whether a commit was pruned, so that it cannot be deployed.
    pub(super) fn is_pruned(&self, files: &Files, commit: &str) -> bool {
        let is_own = self.commits.lock().unwrap().iter().any(|own| own == commit);
        is_own && !files.path(&Self::object(commit)).exists()
    }

    /// Runs `ostree refs --repo /ostree/repo` with these arguments.
    pub(super) fn refs(files: &Files, arguments: &[&str]) -> Result<(), String> {
        match arguments {
            ["--create=machinist/layered", "--force", commit] => {
                files.write(REFERENCE, format!("{commit}\n"));
                Ok(())
            }
            ["--delete", "machinist/layered"] => {
                fs::remove_file(files.path(REFERENCE)).map_err(|error| error.to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}
