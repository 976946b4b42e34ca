//! A control plane on the lab's bridge: etcd, API server, controller-manager, scheduler.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api_reader::ApiReader;
use super::cgroup::Group;
use super::{Machine, Node, WORK, credentials, lab, wait};

/// Collects garbage seldom: the host has more memory than processor time to spare.
pub(super) const GOGC: &str = "400";
const API: &str = "kube-apiserver";
const CONTROLLERS: &str = "kube-controller-manager";

/// Measured: 3 s on idle cores; the rest is for busy ones.
const START: Duration = wait::seconds(90);

/// A running control plane; its processes end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    pub(super) dir: PathBuf,
    pub(super) group: Group,
    pub(super) reader: ApiReader,
    /// In the order in which they were started.
    processes: Mutex<Vec<(String, Child)>>,
    /// From the start of etcd to an API server that reports ready.
    pub start_time: Duration,
}

impl Cluster {
    /// Starts a control plane of `version`, the one that `tests/lab/run` was started for.
    pub fn start(version: &str) -> Self {
        let prepared = &lab().version;
        assert_eq!(
            version, prepared,
            "for this version: tests/lab/run --kube {version}"
        );
        let dir = Path::new(WORK).join("cluster");
        assert!(
            !dir.exists(),
            "one cluster at a time: {} exists",
            dir.display()
        );
        fs::create_dir_all(&dir).unwrap();
        let start = Instant::now();
        let group = Group::new("control-plane");
        credentials(&dir);
        let admin = credentials::kubeconfig(&dir, "admin", "system:masters");
        let mut cluster = Self {
            dir,
            group,
            reader: ApiReader::start(admin),
            processes: Mutex::default(),
            start_time: Duration::ZERO,
        };
        cluster.spawn("etcd", &etcd(&cluster.dir));
        cluster.start_api();
        cluster.start_time = start.elapsed();
        cluster.spawn(CONTROLLERS, &controller_manager(&cluster.dir));
        cluster.spawn("kube-scheduler", &scheduler(&cluster.dir));
        // The admission plugin refuses pods until their namespace has its service account.
        cluster.wait_component(CONTROLLERS, || {
            let account = [
                "get",
                "serviceaccount/default",
                "configmap/kube-root-ca.crt",
            ];
            cluster.try_kubectl(&account).status.success()
        });
        cluster
    }

    /// Makes `machine` a node of this cluster and waits until it is Ready.
    pub fn join<'a>(&'a self, machine: &'a Machine) -> Node<'a> {
        Node::join(self, machine)
    }

    /// A machine that has joined already, for instance in an earlier boot.
    pub fn node<'a>(&'a self, machine: &'a Machine) -> Node<'a> {
        Node::new(self, machine)
    }

    /// The version of `resource.k8s.io` that this server serves.
    pub fn claims(&self) -> &'static str {
        if claims_are_off() { CLAIMS } else { "v1" }
    }

    /// A self-contained kubeconfig for a user of a group; `system:masters` has all permissions.
    pub fn kubeconfig(&self, user: &str, group: &str) -> PathBuf {
        credentials::kubeconfig(&self.dir, user, group)
    }

    /// The log of a component so far.
    pub fn log(&self, component: &str) -> String {
        fs::read_to_string(self.dir.join(format!("{component}.log"))).unwrap_or_default()
    }

    /// The audit log: one event per completed request, with user, verb, object and response.
    pub fn audit(&self) -> Vec<serde_json::Value> {
        let log = fs::read(self.dir.join("audit.log")).unwrap_or_default();
        // The last line may be half written, and end within a character.
        String::from_utf8_lossy(&log)
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// A command for a component of the one binary, in the lab's network and in the control plane's
    /// group.
    pub(super) fn component(&self, name: &str) -> Command {
        let mut command = self.group.command(&lab().kube);
        command
            .arg(name)
            .env("HOME", &self.dir)
            .env("GOGC", GOGC)
            .stdin(Stdio::null());
        command
    }

    /// A command for any program of this host, in the lab's network, as an operator runs it on a
    /// workstation.
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = self.group.command(program);
        command.env("HOME", &self.dir).stdin(Stdio::null());
        command
    }

    fn spawn(&self, name: &str, flags: &[String]) {
        let log = self.dir.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.component(name);
        command
            .args(flags)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        let child = command.spawn().unwrap();
        self.processes().push((name.to_owned(), child));
    }

    fn processes(&self) -> MutexGuard<'_, Vec<(String, Child)>> {
        let processes = self.processes.lock();
        processes.unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the API server, together with the requests it was serving.
    pub fn stop_api(&self) {
        self.stop(API);
    }

    /// Stops the controllers, so that objects stay unchanged after their creation.
    pub fn stop_controllers(&self) {
        self.stop(CONTROLLERS);
    }

    fn stop(&self, component: &str) {
        let mut processes = self.processes();
        let place = processes.iter().position(|(name, _)| name == component);
        let (_, mut process) = processes.remove(place.expect("the component runs"));
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts the API server again, on the data that etcd has kept, and waits until it reports
    /// ready.
    pub fn start_api(&self) {
        self.spawn(API, &api_server(&self.dir));
        self.wait_component(API, || {
            self.try_kubectl(&["get", "--raw", "/readyz"])
                .status
                .success()
        });
    }

    fn wait_component(&self, name: &str, ready: impl FnMut() -> bool) {
        let attempt = std::panic::AssertUnwindSafe(|| {
            wait::until(&format!("{name} to be ready"), START, ready);
        });
        if let Err(panic) = std::panic::catch_unwind(attempt) {
            eprintln!("--- {name}\n{}", tail(&self.log(name), 30));
            std::panic::resume_unwind(panic);
        }
    }

    /// Prints what a failed test needs, shortest first, since a report may be cut.
    fn print_logs(&self) {
        let wide = "get nodes,pods,poddisruptionbudgets --all-namespaces -o wide";
        self.print(wide, |text| text);
        let events = "get events --all-namespaces --sort-by=.metadata.creationTimestamp";
        self.print(events, |text| tail(&text, 40));
        self.print("get pods --all-namespaces -o json", |text| {
            let pods = items(&text).into_iter();
            let waiting = pods.filter(|pod| pod["status"]["phase"] != "Running");
            waiting
                .map(|pod| format!("{:#}\n", pod["status"]))
                .collect()
        });
        self.print("get nodes -o json", |text| {
            let short = |mut node: Value| {
                for field in ["addresses", "images", "nodeInfo"] {
                    node["status"][field].take();
                }
                node["metadata"]["managedFields"].take();
                format!("{node:#}\n")
            };
            items(&text).into_iter().map(short).collect()
        });
    }

    fn print(&self, arguments: &str, shown: impl FnOnce(String) -> String) {
        let words: Vec<&str> = arguments.split(' ').collect();
        let output = self.try_kubectl(&words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        eprintln!("--- kubectl {arguments}\n{errors}{}", shown(text));
    }
}

/// The items of a list; none if it could not be read.
fn items(list: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.print_logs();
        }
        if lab().keep {
            let (kube, config) = (lab().kube.display(), self.dir.join("admin.kubeconfig"));
            let config = config.display();
            println!(
                "lab: API: nsenter --net={} {kube} kubectl --kubeconfig {config}",
                super::NETWORK
            );
            return;
        }
        for (_, process) in self.processes().iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        self.group.remove();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Creates the CA and the audit policy.
fn credentials(dir: &Path) {
    credentials::authority(dir);
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                  rules:\n- {level: Request, resources: [{group: \"\", resources: [nodes, nodes/status]}]}\n\
                  - {level: Metadata}\n";
    fs::write(dir.join("audit.yaml"), policy).unwrap();
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn etcd(dir: &Path) -> Vec<String> {
    let client = "http://127.0.0.1:2379";
    flags(&[
        // The control plane never loses power in the lab; only machines do.
        "--unsafe-no-fsync",
        "--log-level=warn",
        &format!("--listen-client-urls={client}"),
        &format!("--advertise-client-urls={client}"),
        "--listen-peer-urls=http://127.0.0.1:2380",
        &format!("--data-dir={}", dir.join("etcd").display()),
    ])
}

fn api_server(dir: &Path) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
    flags(&[
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=443",
        "--bind-address=0.0.0.0",
        "--advertise-address=10.99.0.1",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        &file("cert-dir", "certificates"),
        &file("service-account-key-file", "accounts.key"),
        &file("service-account-signing-key-file", "accounts.key"),
        &file("client-ca-file", "authority.crt"),
        &file("audit-policy-file", "audit.yaml"),
        &file("audit-log-path", "audit.log"),
    ])
    .into_iter()
    .chain(gates())
    .chain(claims_are_off().then(|| format!("--runtime-config=resource.k8s.io/{CLAIMS}=true")))
    .collect()
}

fn controller_manager(dir: &Path) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", dir.join(name).display());
    flags(&[
        "--leader-elect=false",
        "--secure-port=0",
        &file("kubeconfig", "admin.kubeconfig"),
        &file("service-account-private-key-file", "accounts.key"),
        // Self-signed: the server's certificate file ends with the CA certificate that pods
        // receive.
        &file("root-ca-file", "certificates/apiserver.crt"),
    ])
    .into_iter()
    .chain(gates())
    .collect()
}

fn scheduler(dir: &Path) -> Vec<String> {
    let kubeconfig = format!("--kubeconfig={}", dir.join("admin.kubeconfig").display());
    let mut all = flags(&["--leader-elect=false", "--secure-port=0", &kubeconfig]);
    all.extend(gates());
    all
}

/// The version of `resource.k8s.io` that is enabled where none is by default.
const CLAIMS: &str = "v1beta1";

/// Whether DRA has to be enabled explicitly in this version: it is on by default from 1.34.
pub(super) fn claims_are_off() -> bool {
    lab().version.starts_with("1.33.")
}

fn gates() -> Option<String> {
    claims_are_off().then(|| "--feature-gates=DynamicResourceAllocation=true".to_owned())
}

fn flags(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}
