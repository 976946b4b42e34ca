//! Updates from one config to another on three mounts, with every operation at least once.

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{SnapshotNode, TreeSnapshot};

use crate::{
    sandbox::{Sandbox, Written, at, config, without_staging},
    stepwise_update::StepwiseUpdate,
};

pub const MOUNTS: &[&str] = &["/data", "/etc"];

/// A machine on the old config, and the expected trees of the update to the new config.
pub struct Case {
    pub from: Written,
    pub to: Written,
    /// The whole tree, including the state directory.
    pub start: TreeSnapshot,
    /// Before the update, without the state directory.
    pub old: TreeSnapshot,
    /// After the update, without the state directory.
    pub new: TreeSnapshot,
    /// After the commit, before directories that are no longer needed are removed.
    pub committed: TreeSnapshot,
    /// After the updates in between, if there are any.
    pub between: Vec<TreeSnapshot>,
    mounts: &'static [&'static str],
    /// Its file systems do not support `RENAME_EXCHANGE`.
    pub no_exchange: bool,
}

impl Case {
    /// Files, links, directories: created, changed, exchanged for one another, removed, restored.
    pub fn everything() -> Self {
        let sandbox = Sandbox::with_mounts(MOUNTS);
        for (path, text) in [
            ("/etc/motd", "found\n"),
            ("/etc/found", "found, to be replaced\n"),
            ("/etc/away", "found, and to come back\n"),
            ("/data/found", "found on another mount\n"),
            ("/srv/untouched", "nobody's business\n"),
        ] {
            sandbox.write(path, text);
        }
        std::fs::create_dir_all(sandbox.path("/srv/dir")).unwrap();
        let from = config("from")
            .file("/etc/motd", "first\n", 0o644)
            .file("/etc/away", "in between\n", 0o600)
            .file("/etc/gone", "leaves\n", 0o644)
            .file("/srv/made/leaves", "leaves with its directory\n", 0o644)
            .file("/data/both", "one\n", 0o644)
            .link("/etc/link", "motd")
            .file("/etc/kind", "a file at first\n", 0o644)
            .dir("/srv/tree", 0o755);
        Self::of(sandbox, from, wanted(), MOUNTS)
    }

    /// Few operations: a tree, a link, a removal, a file on another mount.
    pub fn small() -> Self {
        const TWO: &[&str] = &["/data"];
        let sandbox = Sandbox::with_mounts(TWO);
        sandbox.write("/data/found", "found\n");
        let from = config("from").file("/etc/gone", "leaves\n", 0o644);
        let to = config("to")
            .file("/etc/new/file", "in a tree\n", 0o644)
            .link("/etc/link", "new/file")
            .file("/data/found", "replaced\n", 0o600);
        Self::of(sandbox, from, to, TWO)
    }

    /// A user is added, with a home, a key and a password, next to a changed file.
    pub fn user_comes() -> Self {
        let sandbox = Sandbox::new().with_accounts();
        let from = config("from").file("/etc/motd", "first\n", 0o644);
        Self::of(sandbox, from, Self::with_ann(), &[])
    }

    /// The same user is removed; the home stays.
    pub fn user_goes() -> Self {
        let sandbox = Sandbox::new().with_accounts();
        let to = config("to").file("/etc/motd", "third\n", 0o644);
        Self::of(sandbox, Self::with_ann(), to, &[])
    }

    fn with_ann() -> Written {
        config("ann")
            .file("/etc/motd", "second\n", 0o644)
            .admin("ann")
            .key("ann", "ssh-ed25519 AAAA ann")
    }

    /// More objects than are synced one by one.
    pub fn large() -> Self {
        const TWO: &[&str] = &["/data"];
        let sandbox = Sandbox::with_mounts(TWO);
        let mut from = config("from");
        let mut to = config("to").dir("/srv/dir", 0o711);
        std::fs::create_dir_all(sandbox.path("/srv/dir")).unwrap();
        for number in 0..20 {
            sandbox.write(&format!("/etc/found-{number}"), &format!("{number}\n"));
            let text = format!("from {number}\n");
            from = from.file(&format!("/etc/a-{number}"), &text, 0o644).file(
                &format!("/data/leaves-{number}"),
                &text,
                0o644,
            );
            let text = format!("to {number}\n");
            to = to
                .file(&format!("/etc/a-{number}"), &text, 0o644)
                .file(&format!("/etc/found-{number}"), &text, 0o600)
                .file(
                    &format!("/data/tree-{}/f-{number}", number % 4),
                    &text,
                    0o644,
                )
                .link(&format!("/etc/l-{number}"), &format!("a-{number}"));
        }
        Self::of(sandbox, from, to, TWO)
    }

    pub fn of(
        sandbox: Sandbox,
        from: Written,
        to: Written,
        mounts: &'static [&'static str],
    ) -> Self {
        Self::through(sandbox, from, &[], to, mounts)
    }

    /// From one config to another, with others in between.
    pub fn through(
        sandbox: Sandbox,
        from: Written,
        between: &[Written],
        to: Written,
        mounts: &'static [&'static str],
    ) -> Self {
        sandbox.applied(&from);
        let start = TreeSnapshot::capture(&sandbox.root()).unwrap();
        let old = plain(&sandbox.tree());
        let mut passed = Vec::new();
        for config in between {
            passed.push(committed(&sandbox, config));
            sandbox.applied(config);
            passed.push(plain(&sandbox.tree()));
        }
        let committed = committed(&sandbox, &to);
        sandbox.applied(&to);
        let new = plain(&sandbox.tree());
        Self {
            from,
            to,
            start,
            old,
            new,
            committed,
            between: passed,
            mounts,
            no_exchange: false,
        }
    }

    /// The same on file systems without `RENAME_EXCHANGE`.
    pub fn without_exchange(self) -> Self {
        Self {
            no_exchange: true,
            ..self
        }
    }

    fn as_it_is(&self, sandbox: Sandbox) -> Sandbox {
        match self.no_exchange {
            true => sandbox.without_exchange(),
            false => sandbox,
        }
    }

    /// The machine on the old config.
    pub fn sandbox(&self) -> Sandbox {
        self.as_it_is(Sandbox::holding(&self.start, self.mounts))
    }

    /// The same on a file system of the test's own.
    pub fn sandbox_on(&self, disk: &std::path::Path) -> Sandbox {
        let dir = tempfile::tempdir_in(disk).unwrap();
        self.as_it_is(Sandbox::holding_in(dir, &self.start, self.mounts))
    }

    /// A machine that holds this tree.
    pub fn holding(&self, tree: &TreeSnapshot) -> Sandbox {
        self.as_it_is(Sandbox::holding(tree, self.mounts))
    }

    /// Whether the tree is either the old or the new one to other processes; staged files are
    /// ignored.
    pub fn is_old_or_new(&self, tree: &TreeSnapshot) -> bool {
        let tree = without_staging(tree);
        [&self.old, &self.committed, &self.new]
            .into_iter()
            .chain(&self.between)
            .any(|known| without_staging(known) == tree)
    }
}

/// The config that [`Case::everything`] leads to.
pub fn wanted() -> Written {
    config("to")
        .file("/etc/motd", "second\n", 0o640)
        .file("/etc/found", "replaced\n", 0o644)
        .file("/etc/new/deep/file", "in a tree\n", 0o644)
        .file("/etc/new/deep/other", "in a tree as well\n", 0o600)
        .link("/etc/new/link", "deep/file")
        .file("/data/both", "two\n", 0o644)
        .file("/data/found", "replaced\n", 0o600)
        .link("/etc/link", "found")
        .dir("/etc/kind", 0o750)
        .dir("/srv/dir", 0o711)
        .dir("/srv/tree", 0o700)
}

/// The tree after the commit alone; the update is rolled back.
fn committed(sandbox: &Sandbox, to: &Written) -> TreeSnapshot {
    let mut update = StepwiseUpdate::open(&sandbox.root());
    update.stage(to).unwrap();
    update.commit().unwrap();
    let tree = without_staging(&sandbox.tree());
    update.undo().unwrap();
    tree
}

/// A tree without the state directory, with the names below `originals/` made equal, because they
/// contain the time.
pub fn plain(tree: &TreeSnapshot) -> TreeSnapshot {
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    let rename = |path: &AbsPath, node: &SnapshotNode| {
        let Some((holder, _)) = path.as_str().split_once("/.machinist/originals/") else {
            return path.clone();
        };
        let key = format!("{holder}{:?}", node.object);
        let count = counts.entry(key.clone()).or_default();
        *count += 1;
        let digest = machinist_base::digest::Digest::of(key.as_bytes()).short(8);
        at(&format!("{holder}/.machinist/originals/{digest}-{count}"))
    };
    let mut rename = rename;
    let seen = crate::sandbox::seen(tree);
    TreeSnapshot(
        seen.0
            .iter()
            .map(|(path, node)| {
                let kept = |path: &AbsPath| path.as_str().contains("/.machinist/");
                let same = node.same.clone().filter(|same| !kept(same) && !kept(path));
                let alone = SnapshotNode {
                    same: None,
                    ..node.clone()
                };
                (rename(path, &alone), SnapshotNode { same, ..alone })
            })
            .collect(),
    )
}
