//! Installs machinist into a cluster as an administrator does: the image, and the kustomization as
//! shipped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde_json::Value;

use super::{Cluster, Machine, WORK, image, wait};

const HOME: &str = env!("CARGO_MANIFEST_DIR");

/// The namespace that the kustomization creates.
pub const NAMESPACE: &str = "machinist-system";

/// The copy of the binary that the agent installs on its host.
pub const CONSOLE: &str = "/usr/local/libexec/machinist/machinist";

/// The image is pulled, started and its probes succeed; the rest is for busy cores.
const ROLLED_OUT: &str = "180s";

/// The lab's pod network does not lead to the API server.
const CONTROLLER_PATCH: &str = r#"patches:
- target: {kind: Deployment, name: machinist-controller}
  patch: '[{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": true}]'
"#;

/// The image as `packaging/image/build` makes it.
#[derive(Debug)]
pub struct Shipped {
    archive: PathBuf,
    /// The program that it contains.
    pub program: PathBuf,
    /// `sha256:…`, as the kustomization names it.
    pub digest: String,
}

/// The content of an administrator's own kustomization besides the image.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstalledMachine<'a> {
    /// The digest of another image than the shipped one.
    pub image: Option<&'a str>,
    /// Settings of the fleet, merged below those that are shipped.
    pub settings: &'a str,
    /// A pool's settings: the file's name, and its text.
    pub pool: Option<(&'a str, &'a str)>,
    /// Directories of `packaging/kubernetes`.
    pub components: &'a [&'a str],
    /// Whether the controller runs in the cluster, too.
    pub controller: bool,
}

/// The static binary that `tests/lab/run` has built, or that MACHINIST_LAB_BINARY names.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Ok(binary) = std::env::var("MACHINIST_LAB_BINARY") {
            return binary.into();
        }
        stdout_of(&mut Command::new(
            Path::new(HOME).join("packaging/image/binary"),
        ))
        .into()
    })
}

/// The image with that binary, packed once per process.
pub fn shipped() -> &'static Shipped {
    static SHIPPED: OnceLock<Shipped> = OnceLock::new();
    SHIPPED.get_or_init(|| Shipped::pack("machinist.tar", binary()))
}

/// The image of another build, whose program has another version in its user agent.
pub fn another_build() -> Shipped {
    let program = Path::new(WORK).join("another-build");
    let (old, new) = (user_agent(), other_user_agent());
    let mut edit = Command::new("sed");
    edit.env("LC_ALL", "C")
        .arg(format!("s|{}|{new}|g", old.replace('.', "\\.")))
        .arg(binary())
        .stdout(fs::File::create(&program).unwrap());
    assert!(edit.status().unwrap().success(), "{edit:?}");
    let (was, is) = (fs::read(binary()).unwrap(), fs::read(&program).unwrap());
    assert!(was.len() == is.len() && was != is, "it contains no {old}");
    Shipped::pack("another-build.tar", &program)
}

/// The user agent of the program in the API server's audit log.
pub fn user_agent() -> String {
    concat!("machinist/", env!("CARGO_PKG_VERSION")).to_owned()
}

/// The user agent of [`another_build`], which has the same length.
pub fn other_user_agent() -> String {
    let mut agent = user_agent();
    let last = if agent.pop() == Some('9') { '8' } else { '9' };
    agent.push(last);
    agent
}

impl Shipped {
    fn pack(archive: &str, program: &Path) -> Self {
        let archive = Path::new(WORK).join(archive);
        let mut build = Command::new(Path::new(HOME).join("packaging/image/build"));
        build.args(["--compression", "1", "--output"]).arg(&archive);
        let image = stdout_of(build.arg("--binary").arg(program));
        let digest = image.rsplit_once('@').expect("a digest").1;
        Self {
            digest: digest.to_owned(),
            program: program.to_owned(),
            archive,
        }
    }

    /// Gives the image to the container runtime of a node.
    pub fn import(&self, machine: &Machine) {
        machine.write("/var/lib/machinist.tar", fs::read(&self.archive).unwrap());
        machine.sh(
            "ctr -n k8s.io images import --base-name localhost/machinist --digests \
             /var/lib/machinist.tar >/dev/null && rm /var/lib/machinist.tar",
        );
    }
}

/// The standard output of a program that must succeed.
fn stdout_of(program: &mut Command) -> String {
    let output = program.output().expect("it can be run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {error}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim_end()
        .to_owned()
}

impl Cluster {
    /// Applies the overlay for clusters without OpenShift, with the image's digest set as described
    /// in docs/install.md, and waits until an agent is ready on each of the nodes. `settings` are
    /// added to the fleet's ConfigMap, below those that are shipped.
    pub fn install_machinist(&self, machines: &[&Machine], settings: &str) {
        machines
            .iter()
            .for_each(|machine| shipped().import(machine));
        // kubectl resolves every kind before it applies the first object, so the CRDs must exist.
        let kinds = Path::new(HOME).join("packaging/kubernetes/crds");
        self.kubectl(&["apply", "-k", kinds.to_str().unwrap()]);
        let established = ["wait", "--for=condition=Established", "crd", "--all"];
        self.kubectl(&established);
        let settings = InstalledMachine {
            settings,
            ..InstalledMachine::default()
        };
        self.apply_overlay("vanilla", &settings);
        self.wait_rolled_out();
    }

    /// Runs `kubectl apply -k` for a kustomization over `packaging/kubernetes/overlays/NAME`.
    pub fn apply_overlay(&self, name: &str, mine: &InstalledMachine<'_>) {
        let dir = self.dir.join("kustomization");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("mine")).unwrap();
        let copied = Command::new("cp")
            .arg("-r")
            .arg(Path::new(HOME).join("packaging/kubernetes"))
            .arg(dir.join("machinist"))
            .status();
        assert!(copied.is_ok_and(|status| status.success()));
        let (resource, patch) = if mine.controller {
            (", ../machinist/controller", CONTROLLER_PATCH)
        } else {
            ("", "")
        };
        let mut text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
             resources: [../machinist/overlays/{name}{resource}]\n\
             images: [{{name: localhost/machinist, digest: '{}'}}]\n{patch}",
            mine.image.unwrap_or(&shipped().digest)
        );
        let components = mine.components.iter();
        let components: Vec<_> = components.map(|it| format!("../machinist/{it}")).collect();
        if !components.is_empty() {
            text += &format!("components: [{}]\n", components.join(", "));
        }
        let mut files = Vec::new();
        if !mine.settings.is_empty() {
            let shipped = dir.join("machinist/base/machinist.yaml");
            let whole = fs::read_to_string(shipped).unwrap() + mine.settings;
            files.push(("machinist.yaml", whole));
        }
        files.extend(mine.pool.map(|(file, text)| (file, text.to_owned())));
        if !files.is_empty() {
            let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
            text += &format!(
                "configMapGenerator:\n- name: machinist\n  namespace: {NAMESPACE}\n  behavior: merge\n  \
                 files: [{}]\n  options: {{disableNameSuffixHash: true}}\n",
                names.join(", ")
            );
        }
        for (name, text) in files {
            fs::write(dir.join("mine").join(name), text).unwrap();
        }
        fs::write(dir.join("mine/kustomization.yaml"), text).unwrap();
        self.kubectl(&["apply", "-k", &self.overlay()]);
    }

    /// The kustomization that was applied last.
    pub fn overlay(&self) -> String {
        let mine = self.dir.join("kustomization/mine");
        mine.to_str().unwrap().to_owned()
    }

    /// Waits until every node's agent is ready.
    pub fn wait_rolled_out(&self) {
        let timeout = format!("--timeout={ROLLED_OUT}");
        let agents = "daemonset/machinist";
        self.kubectl(&["-n", NAMESPACE, "rollout", "status", agents, &timeout]);
    }

    /// The agent's pod on a node.
    pub fn agent_pod(&self, node: &str) -> Option<Value> {
        let on = format!("spec.nodeName={node}");
        let list = ["-n", NAMESPACE, "get", "pods", "--field-selector", &on];
        let pods = self.try_kubectl(&[&list[..], &["-o", "json"]].concat());
        let pods: Value = serde_json::from_slice(&pods.stdout).ok()?;
        let alive = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        pods["items"].as_array()?.iter().find(alive).cloned()
    }

    /// A Deployment of the lab's image that is pinned to one node and recreates evicted pods there.
    pub fn workload(&self, name: &str, node: &str, replicas: u32) {
        self.workload_on(name, "kubernetes.io/hostname", node, replicas);
    }

    /// The same on nodes with a label.
    pub fn workload_on(&self, name: &str, label: &str, value: &str, replicas: u32) {
        let pod = serde_json::json!({
            "metadata": {"labels": {"app": name}},
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": false,
                "nodeSelector": {(label): value},
                "containers": [{"name": "main", "image": image::PAUSE, "imagePullPolicy": "Never"}],
            },
        });
        let deployment = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": pod},
        });
        self.apply(&deployment.to_string());
        let deployment = format!("deployment/{name}");
        self.kubectl(&["rollout", "status", &deployment, "--timeout=60s"]);
    }
}

impl Machine {
    /// The agent's state from the console copy on the host, or `None` while no agent answers.
    pub fn console_status(&self) -> Option<Value> {
        let output = self.try_exec(&[CONSOLE, "status", "-o", "json"]).ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The same, until `condition` holds for it.
    pub fn wait_console(
        &self,
        what: &str,
        deadline: std::time::Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Value {
        wait::value(&format!("{what} ({})", self.name()), deadline, || {
            self.console_status().filter(&mut condition)
        })
    }
}
