//! A machine in a temporary directory that is updated by the real reconciler, and configs for it.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

pub use crate::null_services::{NoServices, Quiet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{
    Content, Directory, File, Link, MachineConfig, Owner, PasswordHash, Unit, UnitName, User,
    UserAccount,
};
use machinist_plan::{Capabilities, OsCapabilities, Policies};
use machinist_rootfs::{FsOp, FsOpKind, Root, SnapshotObject, TreeSnapshot};
use machinist_update::{
    journal::Journal,
    reconciler::{
        DesiredConfig, RebootPolicy, Reconciler, ReconcilerOptions, UpdateError, UpdateReport,
    },
    service_port::Services,
    store,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub fn at(path: &str) -> AbsPath {
    path.parse().unwrap()
}

/// A number from the environment, for longer runs and for reproducing one.
pub fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Whether the long run was requested.
pub fn long() -> bool {
    from_environment("LONG").is_some_and(|long| long > 0)
}

/// A config that is written entry by entry. Owners are those of the process, so that tests do not
/// need root.
#[derive(Clone, Default)]
pub struct Written(pub MachineConfig);

pub fn config(name: &str) -> Written {
    Written(MachineConfig {
        name: name.to_owned(),
        ..MachineConfig::default()
    })
}

fn current_owner() -> (Owner, Owner) {
    let uid = nix::unistd::geteuid().as_raw();
    let gid = nix::unistd::getegid().as_raw();
    (Owner::Id(uid), Owner::Id(gid))
}

impl Written {
    pub fn file(mut self, path: &str, text: &str, mode: u32) -> Self {
        let (user, group) = current_owner();
        let content = Content::new(text.as_bytes().to_vec());
        let origin = Default::default();
        self.0.files.insert(
            at(path),
            File {
                content: Some(content),
                mode: Some(mode),
                user: Some(user),
                group: Some(group),
                origin,
            },
        );
        self
    }

    pub fn dir(mut self, path: &str, mode: u32) -> Self {
        let (user, group) = current_owner();
        let origin = Default::default();
        self.0.directories.insert(
            at(path),
            Directory {
                mode: Some(mode),
                user: Some(user),
                group: Some(group),
                origin,
            },
        );
        self
    }

    pub fn link(mut self, path: &str, target: &str) -> Self {
        let (user, group) = current_owner();
        let (target, origin) = (target.to_owned(), Default::default());
        self.0.links.insert(
            at(path),
            Link {
                target,
                hard: false,
                user,
                group,
                origin,
            },
        );
        self
    }

    pub fn hard(self, path: &str, file: &str) -> Self {
        let mut config = self.link(path, file);
        let link = config.0.links.get_mut(&at(path)).unwrap();
        (link.hard, link.user, link.group) = (true, Owner::ROOT, Owner::ROOT);
        config
    }

    pub fn unit(mut self, name: &str, contents: &str, enabled: bool) -> Self {
        self.0.units.insert(
            UnitName::new(name).unwrap(),
            Unit {
                contents: Some(contents.to_owned()),
                enabled: Some(enabled),
                ..Unit::default()
            },
        );
        self
    }

    pub fn user(mut self, name: &str, account: UserAccount) -> Self {
        let account = Some(account);
        let user = User {
            account,
            ..User::default()
        };
        self.0.users.insert(name.to_owned(), user);
        self
    }

    /// A user with a password, in the administrators' group.
    pub fn admin(self, name: &str) -> Self {
        self.user(
            name,
            UserAccount {
                groups: vec!["sudo".to_owned()],
                password_hash: PasswordHash::new("$6$salt$hidden"),
                shell: Some(at("/bin/sh")),
                ..UserAccount::default()
            },
        )
    }

    pub fn key(mut self, name: &str, key: &str) -> Self {
        let user = self.0.users.entry(name.to_owned()).or_default();
        user.ssh_authorized_keys.push(key.to_owned());
        self
    }

    pub fn desired(&self) -> DesiredConfig {
        DesiredConfig::Config(
            Arc::new(self.0.clone()),
            machinist_ignition::digest(&self.0),
        )
    }
}

/// A temporary directory on a file system in memory where there is one: hundreds of updates would
/// wait for the disk otherwise.
pub fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// A tree on which updates run.
pub struct Sandbox {
    dir: tempfile::TempDir,
    mounts: Vec<AbsPath>,
    /// No file system here supports `RENAME_EXCHANGE`.
    pub no_exchange: bool,
}

impl Sandbox {
    pub fn new() -> Self {
        Self::with_mounts(&[])
    }

    /// Each of `tops` is created and treated as a mount of its own.
    pub fn with_mounts(tops: &[&str]) -> Self {
        let sandbox = Self::without_package(tops);
        sandbox.install_recovery();
        sandbox
    }

    /// One that contains no file at all: an offline root does not need the recovery unit.
    pub fn without_package(tops: &[&str]) -> Self {
        let sandbox = Self {
            dir: temporary(),
            mounts: tops.iter().map(|top| at(top)).collect(),
            no_exchange: false,
        };
        let root = sandbox.root();
        for dir in ["/etc", "/var/lib"].iter().chain(tops) {
            root.make_dirs(&at(dir), 0o755).unwrap();
        }
        sandbox
    }

    /// Installs the package's recovery unit, without which a running machine is not updated.
    fn install_recovery(&self) {
        self.write_recovery_units();
        self.write("/usr/bin/machinist", "#!/bin/sh\n");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.path("/usr/bin/machinist"), executable).unwrap();
        let wants = self.path("/usr/lib/systemd/system/sysinit.target.wants");
        std::fs::create_dir_all(&wants).unwrap();
        let link = wants.join("machinist-recover.service");
        std::os::unix::fs::symlink("../machinist-recover.service", link).unwrap();
    }

    pub fn write_recovery_units(&self) {
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd");
        for unit in ["machinist-recover.service", "machinist-guard.service"] {
            let text = std::fs::read_to_string(format!("{own}/{unit}")).unwrap();
            self.write(&format!("/usr/lib/systemd/system/{unit}"), &text);
        }
    }

    /// One that holds exactly `tree`.
    pub fn holding(tree: &TreeSnapshot, tops: &[&str]) -> Self {
        Self::holding_in(temporary(), tree, tops)
    }

    /// The same in a directory of the test's own.
    pub fn holding_in(dir: tempfile::TempDir, tree: &TreeSnapshot, tops: &[&str]) -> Self {
        let sandbox = Self {
            dir,
            mounts: tops.iter().map(|top| at(top)).collect(),
            no_exchange: false,
        };
        tree.materialise(&Root::open(sandbox.dir.path()).unwrap())
            .unwrap();
        sandbox
    }

    /// A handle of its own, as a new process would have.
    pub fn root(&self) -> Root {
        let root = Root::open(self.dir.path()).unwrap();
        let root = match self.mounts.is_empty() {
            true => root,
            false => root.with_simulated_mounts(self.mounts.clone()),
        };
        match self.no_exchange {
            true => root.with_fault(Arc::new(no_exchange)),
            false => root,
        }
    }

    /// The same with further file systems at these paths.
    pub fn mounted(mut self, tops: &[&str]) -> Self {
        self.mounts.extend(tops.iter().map(|top| at(top)));
        self
    }

    /// The same without `RENAME_EXCHANGE`.
    pub fn without_exchange(mut self) -> Self {
        self.no_exchange = true;
        self
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below.trim_start_matches('/'))
    }

    pub fn write(&self, path: &str, text: &str) {
        let to = self.path(path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, text).unwrap();
    }

    /// The account files of a small machine, with oddities of real ones.
    pub fn with_accounts(self) -> Self {
        for (path, text, mode) in [
            (
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/bash\nbob:x:1000:1000:Bob:/home/bob:/bin/bash\n\
                 # by hand\n+@netgroup::::::\n",
                0o644,
            ),
            (
                "/etc/shadow",
                "root:*:19000:0:99999:7:::\nbob:$6$s$bobs:19000:0:99999:7:::\n",
                0o600,
            ),
            ("/etc/group", "root:x:0:\nsudo:x:27:bob\nbob:x:1000:", 0o644),
            ("/etc/gshadow", "root:*::\nsudo:*::bob\nbob:!::", 0o600),
            ("/etc/subuid", "bob:100000:65536\n", 0o644),
            ("/etc/subgid", "bob:100000:65536\n", 0o644),
            // It exists wherever a user was ever changed.
            ("/etc/.pwd.lock", "", 0o600),
            ("/etc/skel/.profile", "# for everybody\n", 0o644),
            ("/home/bob/.profile", "# bobs\n", 0o644),
        ] {
            self.write(path, text);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(self.path(path), mode).unwrap();
        }
        self
    }

    pub fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok()
    }

    pub fn journal(&self) -> Journal {
        store::peek(&self.root()).unwrap()
    }

    /// Everything but machinist's own state directory.
    pub fn tree(&self) -> TreeSnapshot {
        seen(&TreeSnapshot::capture(&self.root()).unwrap())
    }

    /// Runs an offline update to its end.
    pub fn apply(&self, config: &Written) -> Arc<UpdateReport> {
        apply(&self.root(), config).unwrap()
    }

    /// Like [`Sandbox::apply`], and asserts that it succeeds and leaves nothing open.
    pub fn applied(&self, config: &Written) -> Arc<UpdateReport> {
        let report = self.apply(config);
        assert_eq!(report.failure, None);
        let journal = self.journal();
        assert_eq!(journal.transactions, []);
        let base = journal.base.map(|base| base.digest);
        assert_eq!(base, Some(machinist_ignition::digest(&config.0)));
        report
    }
}

/// The error of a file system that does not support `RENAME_EXCHANGE`.
pub fn no_exchange(op: &FsOp) -> Option<io::Error> {
    let exchange = matches!(op.act, FsOpKind::Exchange(_));
    exchange.then(|| io::Error::from_raw_os_error(nix::libc::EINVAL))
}

/// A tree as other processes see it: without the state directory.
pub fn seen(tree: &TreeSnapshot) -> TreeSnapshot {
    let own = at("/var/lib/machinist");
    tree.without(|path| path.is_under(&own))
}

/// A tree without the staged files of an unfinished update.
pub fn without_staging(tree: &TreeSnapshot) -> TreeSnapshot {
    let staged = |path: &AbsPath| path.components().any(|name| name == ".machinist");
    let own = at("/var/lib/machinist");
    tree.without(|path| staged(path) || path.is_under(&own))
}

/// The differences between two trees, as text.
pub fn difference(one: &TreeSnapshot, other: &TreeSnapshot) -> String {
    let mut lines = String::new();
    let short = |node: Option<&machinist_rootfs::SnapshotNode>| match node {
        None => "nothing".to_owned(),
        Some(node) => {
            let what = match &node.object {
                SnapshotObject::File(bytes) => {
                    let text = String::from_utf8_lossy(bytes);
                    format!("file {:?}", text.chars().take(60).collect::<String>())
                }
                other => format!("{other:?}"),
            };
            let same = match &node.same {
                Some(same) => format!(" = {same}"),
                None => String::new(),
            };
            format!("{what} {:o} {}:{}{same}", node.mode, node.uid, node.gid)
        }
    };
    let paths: std::collections::BTreeSet<_> = one.0.keys().chain(other.0.keys()).collect();
    for path in paths {
        let (left, right) = (one.0.get(path), other.0.get(path));
        if left != right {
            lines += &format!("{path}: {} | {}\n", short(left), short(right));
        }
    }
    lines
}

pub fn conduct(live: bool) -> ReconcilerOptions {
    ReconcilerOptions {
        reboot: RebootPolicy::Auto,
        verify_timeout: Duration::from_secs(60),
        boot_attempts: 2,
        os_boot_attempts: 1,
        reboot_timeout: Duration::from_secs(60),
        os_step_timeout: Duration::from_secs(3600),
        job_timeout: Duration::from_secs(1),
        settle: Duration::ZERO,
        full_pass: Duration::from_secs(3600),
        capabilities: Capabilities {
            live,
            chown: nix::unistd::geteuid().is_root(),
            os: OsCapabilities::default(),
        },
        windows: Default::default(),
        drift: Default::default(),
        policies: Arc::new(Policies::default()),
    }
}

/// The same as `machinist apply` on an offline root.
pub fn apply(root: &Root, config: &Written) -> Result<Arc<UpdateReport>, UpdateError> {
    once(root, None::<NoServices>, conduct(false), config)
}

/// Runs one update to its end.
pub fn once(
    root: &Root,
    services: Option<impl Services>,
    conduct: ReconcilerOptions,
    config: &Written,
) -> Result<Arc<UpdateReport>, UpdateError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (_keep, desired) = watch::channel(config.desired());
    runtime.block_on(async {
        let (updater, _) = Reconciler::new(root, services, Quiet, conduct, desired)?;
        updater.run_once(CancellationToken::new()).await
    })
}

/// On a running machine where every change restarts one unit.
pub fn restarting(unit: &str) -> ReconcilerOptions {
    let entry = |path: &str| {
        let restart = serde_json::json!({"type": "Restart", "restart": {"serviceName": unit}});
        serde_json::json!({"path": path, "actions": [restart]})
    };
    let files: Vec<_> = ["/etc", "/data", "/srv"].map(entry).into();
    let object = serde_json::json!({"spec": {"nodeDisruptionPolicy": {"files": files}}});
    ReconcilerOptions {
        policies: Arc::new(Policies::from_machine_configuration(&object).unwrap()),
        ..conduct(true)
    }
}

/// Like [`restarting`], after a drain.
pub fn draining(unit: &str) -> ReconcilerOptions {
    let entry = |path: &str| {
        let restart = serde_json::json!({"type": "Restart", "restart": {"serviceName": unit}});
        serde_json::json!({"path": path, "actions": [{"type": "Drain"}, restart]})
    };
    let files: Vec<_> = ["/etc", "/data", "/srv"].map(entry).into();
    let object = serde_json::json!({"spec": {"nodeDisruptionPolicy": {"files": files}}});
    ReconcilerOptions {
        policies: Arc::new(Policies::from_machine_configuration(&object).unwrap()),
        ..conduct(true)
    }
}
