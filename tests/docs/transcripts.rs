//! Runs the `console` blocks of `docs/machine-config.md`, in one empty directory and in order, and
//! compares their output with the page. Times, ids and spaces between columns may differ; a line of
//! `…` alone replaces lines that depend on the machine. `UPDATE_GOLDEN=1` rewrites the page.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use machinist_testkit::WAIT_TIMEOUT;

use super::home;

const PAGE: &str = "docs/machine-config.md";

/// A message that only users other than root see.
const OWNERS: &str = "\nWarnings
  CAP_CHOWN missing: owners are recorded, but neither set nor \
     compared
";

/// One command and the lines below it.
struct Step {
    /// Its lines, the first one without the prompt.
    command: String,
    /// The output that the page shows.
    shown: Vec<String>,
    /// Where those lines are on the page.
    at: usize,
}

/// A line that begins with `$ ` is a command; one with `<<'END'` goes on to `END`.
fn steps(page: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let (mut inside, mut typing) = (false, false);
    for (at, line) in page.iter().enumerate() {
        match *line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ if typing => {
                let step = steps.last_mut().unwrap();
                step.command += &format!("{line}\n");
                step.at = at + 1;
                typing = *line != "END";
            }
            _ if line.starts_with("$ ") => {
                typing = line.ends_with("<<'END'");
                let command = format!("{}\n", &line[2..]);
                let (shown, at) = (Vec::new(), at + 1);
                steps.push(Step { command, shown, at });
            }
            _ => steps.last_mut().unwrap().shown.push((*line).to_owned()),
        }
    }
    steps
}

/// The agent that the page starts, ended with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Shell<'a> {
    home: &'a Path,
    agent: Option<Agent>,
}

impl Shell<'_> {
    fn command(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_machinist"));
        let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.home);
        command.env_clear().env("PATH", path);
        // Output about a nearly full disk is not on the page.
        command.env("MACHINIST_READINESS__DISK_SPACE__MIN_FREE", "1%");
        command
    }

    fn run(&mut self, line: &str) -> Vec<String> {
        if let Some(line) = line.trim_end().strip_suffix(" &") {
            let mut agent = self.command(&format!("exec {line}"));
            agent.stdout(Stdio::null()).stderr(Stdio::null());
            self.agent = Some(Agent(agent.spawn().unwrap()));
            self.wait_for_the_agent();
            return Vec::new();
        }
        if line == "kill %1\n" {
            let mut agent = self.agent.take().unwrap();
            let kill = format!("kill {}", agent.0.id());
            self.command(&kill).status().unwrap();
            agent.0.wait().unwrap();
            return Vec::new();
        }
        let whole = format!("{{ {line}}} 2>&1");
        let output = self.command(&whole).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let here = self.home.display().to_string();
        text.replace(&here, "/home/ann/try")
            .replace(OWNERS, "")
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    fn wait_for_the_agent(&self) {
        let start = Instant::now();
        loop {
            let status = self.command("machinist status --root machine").output();
            let text = String::from_utf8(status.unwrap().stdout).unwrap();
            if text.contains("phase    Idle")
                && text.contains("127.0.0.1:")
                && text.contains("gates")
            {
                return;
            }
            assert!(start.elapsed() < WAIT_TIMEOUT, "{text}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A line without the parts that differ from run to run.
fn plain(line: &str) -> String {
    let word = |word: &str| {
        let digits = word.contains(|c: char| c.is_ascii_digit());
        let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let date = core.len() > 9
            && core.starts_with("20")
            && core[..10].bytes().filter(|b| *b == b'-').count() == 2;
        let id = (25..=28).contains(&core.len()) && core.starts_with("20") && core.contains('T');
        let time = core.contains(':') && core.ends_with('Z');
        let span =
            |unit: char| core.starts_with(|c: char| c.is_ascii_digit()) && core.ends_with(unit);
        let span = (span('s') || span('m') || span('h')) && core.len() < 8;
        match digits && (date || id || time || span) {
            true => "T".to_owned(),
            false if core.starts_with("127.0.0.1:") => "ADMIN".to_owned(),
            // The digest is that of the canonical form, which the machine config's own tests check.
            false if core.starts_with("rendered-machine-") => "CONFIG".to_owned(),
            false => word.to_owned(),
        }
    };
    line.split_whitespace()
        .map(word)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Gates whose state depends on the host that runs the tests, such as its free disk space.
const HOST_GATES: [&str; 5] = [
    "Pressure",
    "DiskSpace",
    "Inodes",
    "TimeSync",
    "ReadOnlyRoot",
];

/// The lines without the state and the message of host gates; their names stay.
fn without_host_state(lines: &[String]) -> Vec<String> {
    let mut in_host_gate = false;
    let mut kept = Vec::new();
    for line in lines {
        let indent = line.len() - line.trim_start().len();
        let name = line.split_whitespace().next().unwrap_or_default();
        in_host_gate = (indent == 2 && HOST_GATES.contains(&name)) || (in_host_gate && indent > 2);
        match in_host_gate {
            true if indent == 2 => kept.push(name.to_owned()),
            true => {}
            false => kept.push(line.clone()),
        }
    }
    kept
}

fn same(shown: &[String], found: &[String]) -> bool {
    match (shown.split_first(), found.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "…" => {
            (0..=found.len()).any(|skipped| same(rest, &found[skipped..]))
        }
        (Some((first, rest)), Some((line, others))) => {
            plain(first) == plain(line) && same(rest, others)
        }
        _ => false,
    }
}

#[test]
fn documented_transcripts_match_the_output() {
    let file = home().join(PAGE);
    let text = fs::read_to_string(&file).unwrap();
    let page: Vec<&str> = text.lines().collect();
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let directory = tempfile::tempdir().unwrap();
    let mut shell = Shell {
        home: directory.path(),
        agent: None,
    };
    let (mut written, mut next) = (Vec::new(), 0);
    let steps = steps(&page);
    assert!(steps.len() > 10, "only {} commands", steps.len());
    for step in &steps {
        let found = shell.run(&step.command);
        let agrees = same(
            &without_host_state(&step.shown),
            &without_host_state(&found),
        );
        assert!(
            agrees || update,
            "{PAGE}:{}: {}prints\n{}",
            step.at,
            step.command,
            found.join("\n")
        );
        written.extend(page[next..step.at].iter().map(|line| (*line).to_owned()));
        written.extend(if agrees { step.shown.clone() } else { found });
        next = step.at + step.shown.len();
    }
    written.extend(page[next..].iter().map(|line| (*line).to_owned()));
    if update {
        fs::write(&file, written.join("\n") + "\n").unwrap();
    }
}

#[test]
fn documented_transcripts_fit_a_terminal() {
    let text = fs::read_to_string(home().join(PAGE)).unwrap();
    let page: Vec<&str> = text.lines().collect();
    for step in steps(&page) {
        for line in step.shown {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
