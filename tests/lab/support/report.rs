//! Diagnostics of a machine: its journal, and the output after a failed test.

use std::process::Command;

use super::Machine;

impl Machine {
    /// Waits until journald has stored the lines that it was sent before this; a status may show an
    /// event earlier than the journal. Does nothing when the machine is off.
    pub fn sync_journal(&self) {
        let _ = self.try_exec(&["journalctl", "--sync"]);
    }

    /// This boot's journal of one unit, read with the host's journalctl when the machine is off.
    pub fn journal(&self, unit: &str) -> String {
        self.sync_journal();
        self.journal_with(&["--boot", "--unit", unit])
    }

    /// The journal, selected by `journalctl` arguments.
    pub fn journal_with(&self, arguments: &[&str]) -> String {
        let reader = [
            "journalctl",
            "--no-pager",
            "--quiet",
            "--output=short-monotonic",
        ];
        let from_outside = || {
            let mut command = Command::new(reader[0]);
            command
                .args(&reader[1..])
                .arg("--directory")
                .arg(self.root().join("var/log/journal"));
            command.args(arguments).output()
        };
        let output = self
            .try_exec(&[&reader[..], arguments].concat())
            .or_else(|_| from_outside());
        output
            .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
            .unwrap_or_default()
    }

    /// Prints the logs of a failed test.
    pub(super) fn print_logs(&self) {
        let name = &self.name;
        for (what, arguments) in [
            ("machinist", &["--unit=machinist", "--lines=40"][..]),
            (
                "kubelet, warnings and errors",
                &["--unit=kubelet", "--grep=^[EW][0-9]", "--lines=25"],
            ),
            ("end of its journal", &["--lines=40"]),
        ] {
            let text = self.journal_with(arguments);
            eprintln!("--- {name}: {what}\n{text}");
        }
        if let Ok(status) = self.try_exec(&["/usr/bin/machinist", "status"]) {
            let text = [status.stdout, status.stderr].concat();
            eprintln!(
                "--- {name}: machinist status\n{}",
                String::from_utf8_lossy(&text)
            );
        }
        if self.supervisor.init().is_none() {
            let console = std::fs::read_to_string(self.dir.join("console.log")).unwrap_or_default();
            let from = console.len().saturating_sub(4000);
            eprintln!(
                "--- {name} is off; end of its console\n{}",
                console.get(from..).unwrap_or("")
            );
        }
    }
}
