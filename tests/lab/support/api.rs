//! Access to the API server as an operator has it: through kubectl. Polls use [`ApiReader`](super::api_reader::ApiReader).

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Cluster, image, wait};

impl Cluster {
    /// Runs kubectl as cluster administrator and returns what it printed; a failure ends the test.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        successful(arguments, self.try_kubectl(arguments))
    }

    /// The same with `-o json`.
    pub fn kubectl_json(&self, arguments: &[&str]) -> Value {
        let text = self.kubectl(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("kubectl {arguments:?}: {e}"))
    }

    /// Runs kubectl; the caller decides whether a failure is an error.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.try_kubectl_with(arguments, "")
    }

    /// Runs kubectl with something on its standard input, for `-f -`.
    pub fn try_kubectl_with(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.component("kubectl");
        command
            .arg("--kubeconfig")
            .arg(self.dir.join("admin.kubeconfig"))
            .args(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The pipe is closed at the end of the statement; a kubectl that does not read is no error
        // here.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// `kubectl apply` of YAML or JSON text.
    pub fn apply(&self, manifest: &str) -> String {
        let arguments = ["apply", "-f", "-"];
        successful(&arguments, self.try_kubectl_with(&arguments, manifest))
    }

    /// An object as JSON, or `None` when it does not exist.
    pub fn object(&self, kind: &str, name: &str) -> Option<Value> {
        match path(kind) {
            Some(list) => self.reader.get(&format!("{list}/{name}")),
            None => {
                let output = self.try_kubectl(&["get", kind, name, "-o", "json"]);
                serde_json::from_slice(&output.stdout).ok()
            }
        }
    }

    /// The pods of the default namespace with a label `app`.
    pub fn pods_of(&self, app: &str) -> Vec<Value> {
        let path = format!("/api/v1/namespaces/default/pods?labelSelector=app%3D{app}");
        let list = self.reader.get(&path).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Polls an object until `condition` holds for it; panics at the deadline.
    pub fn wait_object(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Value {
        wait::value(&format!("{kind}/{name}: {what}"), deadline, || {
            self.object(kind, name).filter(&mut condition)
        })
    }

    /// A machinist command outside the machines, with cluster-admin credentials for `user`.
    pub fn machinist(&self, user: &str, arguments: &[&str]) -> Command {
        let mut command = self.beside(Path::new(env!("CARGO_BIN_EXE_machinist")));
        let kubeconfig = self.kubeconfig(user, "system:masters");
        command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
        command
    }

    /// Creates a pod of the lab's busybox on a node, with these counts of resources requested.
    pub fn pod(&self, name: &str, node: &str, resources: &[(&str, u32)]) {
        let limits: serde_json::Map<_, _> = resources
            .iter()
            .map(|(what, n)| ((*what).to_owned(), json!(n.to_string())))
            .collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "hostNetwork": true,
                "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": false,
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{
                    "name": "main", "image": image::PAUSE, "imagePullPolicy": "Never",
                    "resources": {"limits": limits},
                }],
            },
        });
        self.apply(&pod.to_string());
    }

    /// What a shell in a running pod prints. A restarted kubelet refuses `exec` until it has listed
    /// its pods again, so a request that reaches no container is repeated.
    pub fn shell_in_pod(&self, pod: &str, line: &str) -> String {
        let arguments = ["exec", pod, "--", "/bin/sh", "-c", line];
        let what = format!("a shell in pod {pod}");
        let output = wait::value(&what, wait::seconds(30), || {
            let output = self.try_kubectl(&arguments);
            let errors = String::from_utf8_lossy(&output.stderr);
            let ran = output.status.success() || errors.contains("terminated with exit code");
            ran.then_some(output)
        });
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until a pod is in a phase; for `Running` all of its containers must be ready.
    pub fn wait_pod(&self, name: &str, phase: &str, deadline: Duration) -> Value {
        self.wait_object("pod", name, phase, deadline, |pod| {
            let ready = condition(pod, "Ready") == Some("True");
            pod["status"]["phase"] == phase && (ready || phase != "Running")
        })
    }

    /// Requests the eviction of a pod, as `kubectl drain` does.
    pub fn evict(&self, pod: &str) -> Output {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "default"},
        });
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        self.try_kubectl_with(
            &["create", "--raw", &path, "-f", "-"],
            &eviction.to_string(),
        )
    }
}

/// The path of a kind's objects, for the kinds that tests wait for.
fn path(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "machineconfig" => "/apis/machineconfiguration.openshift.io/v1/machineconfigs",
        "machineconfigpool" => "/apis/machineconfiguration.openshift.io/v1/machineconfigpools",
        "machineconfignode" => "/apis/machineconfiguration.openshift.io/v1/machineconfignodes",
        "node" => "/api/v1/nodes",
        "pdb" => "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        "pod" => "/api/v1/namespaces/default/pods",
        "resourcequota" => "/api/v1/namespaces/default/resourcequotas",
        _ => return None,
    })
}

/// The status of a condition of a node or pod: `True`, `False` or `Unknown`.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
}

fn successful(arguments: &[&str], output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
