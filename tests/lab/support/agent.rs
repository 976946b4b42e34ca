//! A machine with the agent on it: how to give it configs and read its status.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::builder::Builder;
use super::{Machine, wait};

/// The config directory of a standalone machine.
const SOURCE: &str = "/etc/machinist/machine.d";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/machine");

/// An example config of the repository, by its number.
///
/// Kernel settings other than the network's belong to the host, so the example's are replaced by
/// two of the network's.
pub fn example(number: &str) -> (String, String) {
    let entries = std::fs::read_dir(EXAMPLES).expect("the examples");
    let found = entries
        .map(|entry| entry.unwrap().path())
        .find(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with(number)
        })
        .unwrap_or_else(|| panic!("there is no example {number}"));
    let text = std::fs::read_to_string(&found)
        .unwrap()
        .replace(
            "fs.inotify.max_user_instances = 1024",
            "net.ipv4.conf.all.log_martians = 1",
        )
        .replace(
            "fs.inotify.max_user_watches = 65536",
            "net.ipv4.conf.all.send_redirects = 0",
        );
    (
        found.file_name().unwrap().to_string_lossy().into_owned(),
        text,
    )
}

/// A MachineConfig with these `storage` and `systemd` sections.
pub fn manifest(name: &str, storage: Value, systemd: Value) -> String {
    let mut config = json!({"ignition": {"version": "3.5.0"}});
    for (key, section) in [("storage", storage), ("systemd", systemd)] {
        if !section.is_null() {
            config[key] = section;
        }
    }
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": name},
        "spec": {"config": config},
    })
    .to_string()
}

/// A file of an Ignition config.
pub fn file(path: &str, mode: u32, content: &str) -> Value {
    json!({"path": path, "mode": mode, "overwrite": true, "contents": {"source": data_url(content)}})
}

/// A MachineConfig with one file whose path no policy covers: it requires a reboot.
pub fn needs_reboot(content: &str) -> String {
    let storage = json!({"files": [file("/etc/example.conf", 0o640, content)]});
    manifest("80-reboot", storage, Value::Null)
}

fn data_url(content: &str) -> String {
    content.bytes().fold("data:,".to_owned(), |mut url, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => url.push(byte.into()),
            byte => write!(url, "%{byte:02X}").unwrap(),
        }
        url
    })
}

impl Builder {
    /// A config of the source, in place at the first boot.
    pub fn config(self, (name, text): (String, String)) -> Self {
        self.file(&format!("{SOURCE}/{name}"), text)
    }
}

impl Machine {
    /// Puts a config into the source atomically, as an editor does.
    pub fn give_config(&self, name: &str, text: &str) {
        let hidden = format!("{SOURCE}/.{name}");
        self.write(&hidden, text);
        self.exec(&["mv", &hidden, &format!("{SOURCE}/{name}")]);
    }

    pub fn take_config(&self, name: &str) {
        self.exec(&["rm", &format!("{SOURCE}/{name}")]);
    }

    /// Enables both units, as the packages do, and starts the agent; returns once systemd reports
    /// it as active (`READY=1`).
    pub fn start_agent(&self) {
        self.exec(&[
            "systemctl",
            "enable",
            "--quiet",
            "machinist-recover",
            "machinist",
        ]);
        self.exec(&["systemctl", "start", "machinist"]);
    }

    /// The agent's status document, or `None` while no agent answers.
    pub fn status(&self) -> Option<Value> {
        let output = self
            .try_exec(&["/usr/bin/machinist", "status", "-o", "json"])
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Polls the status until `condition` holds for it; prints the last one on timeout.
    pub fn wait_status(
        &self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Value {
        wait::value(&format!("{what} ({})", self.name()), deadline, || {
            self.status().filter(&mut condition)
        })
    }

    /// Waits until the machine is verified on a config other than `digest`, with no update in
    /// progress.
    pub fn wait_updated(&self, digest: &str, deadline: Duration) -> Value {
        self.wait_status("the update to be done", deadline, |status| {
            let config = &status["config"];
            status["phase"] == "Idle"
                && status["failure"].is_null()
                && config["current"] == config["desired"]
                && config["digest"] != digest
        })
    }

    /// Queries an HTTP probe; returns the response's code and body.
    pub fn probe(&self, path: &str) -> Option<(u16, String)> {
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/10480 && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let output = self.try_exec(&["bash", "-c", &ask]).ok()?;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some((code, body.trim_end().to_owned()))
    }

    /// `InvocationID` of every unit that has one: it changes whenever a unit is started.
    pub fn invocations(&self) -> BTreeMap<String, String> {
        let shown = self.exec(&["systemctl", "show", "*", "--property=Id,InvocationID"]);
        let blocks = shown.split("\n\n");
        let pairs = blocks.filter_map(|block| {
            let value = |key| block.lines().find_map(|line| line.strip_prefix(key));
            let id = value("InvocationID=").filter(|id| !id.is_empty())?;
            Some((value("Id=")?.to_owned(), id.to_owned()))
        });
        pairs.collect()
    }

    /// One property of a unit.
    pub fn property(&self, unit: &str, property: &str) -> String {
        let property = format!("--property={property}");
        let shown = self.exec(&["systemctl", "show", "--value", &property, unit]);
        shown.trim_end().to_owned()
    }

    /// The agent's log lines in the journal, in all boots.
    pub fn agent_log(&self) -> Vec<String> {
        self.sync_journal();
        let shown = self.exec(&["journalctl", "--quiet", "--output=cat", "_COMM=machinist"]);
        shown.lines().map(str::to_owned).collect()
    }
}

/// The digest of the verified config in a status document.
pub fn digest(status: &Value) -> String {
    status["config"]["digest"].as_str().unwrap().to_owned()
}
