//! Crashes at random moments: the agent is killed or the machine loses power. Recovery leaves
//! either the old config or the new one, and the update then finishes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::agent::{digest, file, manifest};
use crate::support::digest::{Tree, differences};
use crate::support::{Dice, Machine, rounds, wait};

/// Every tree that the configs of these tests change, except the source and the staging directory.
const TREES: &[&str] = &["/etc", "/usr/lib/systemd/system", "/usr/local"];
const OURS: &[&str] = &[STAGING, "/etc/machinist"];
/// Short, so that most of an update's time is spent on files; units are not tested here.
const SETTINGS: &str = "actions: {settle: 50ms}\n";
/// Keeps a killed agent stopped until the test has inspected the machine: systemd does not restart
/// it, and a boot does not start it while [`HOLD`] exists.
const HELD: &str = "[Unit]\nConditionPathExists=!/etc/machinist/hold\n[Service]\nRestart=no\n";
const HOLD: &str = "/etc/machinist/hold";

/// A file whose first word is the letter of the config.
const LETTERED: &str = "/etc/containerd/certs.d/host-0/file-0";

/// Some 250 objects that all differ between two letters: files and links that change, appear and
/// disappear, in directories that do so as well, and units with drop-ins, enablement and masks.
fn config(letter: &str, reboots: bool) -> String {
    // No policy asks for an action for anything below these.
    let (certs, dispatch) = (
        "/etc/containerd/certs.d",
        "/etc/NetworkManager/dispatcher.d",
    );
    let mode = if letter == "a" { 0o644 } else { 0o600 };
    let mut files = Vec::new();
    for n in 0..200 {
        let content = format!("{letter} {n}\n").repeat(n % 50 + 1);
        let path = match n % 4 {
            3 => format!("{certs}/only-{letter}-{}/hosts.toml", n / 40),
            _ => format!("{certs}/host-{}/file-{n}", n % 10),
        };
        let path = if n % 4 == 3 {
            format!("{path}.{n}")
        } else {
            path
        };
        files.push(file(&path, mode, &content));
    }
    if reboots {
        files.push(file("/etc/example.conf", mode, letter));
    }
    let links: Vec<_> = (0..20)
        .map(|n| json!({"path": format!("{dispatch}/link-{n}"), "target": format!("/srv/{letter}/{n}"), "overwrite": true}))
        .collect();
    let units: Vec<_> = (0..8)
        .map(|n| {
            let enabled = (n % 2 == 0) == (letter == "a");
            json!({
                "name": format!("crash-{n}.service"),
                "enabled": enabled,
                "mask": n == 7 && letter == "b",
                "contents": format!(
                    "[Unit]\nDescription={letter}\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
                     ExecStart=/bin/true {letter}\n[Install]\nWantedBy=multi-user.target\n"),
                "dropins": [{"name": format!("10-{letter}.conf"), "contents": format!("[Service]\nEnvironment=IS={letter}\n")}],
            })
        })
        .collect();
    manifest(
        "50-crash",
        json!({"files": files, "links": links}),
        json!({"units": units}),
    )
}

/// A delay after the first write, or after the config was saved.
#[derive(Debug)]
struct Moment {
    writing: bool,
    after: Duration,
}

/// The directory of an update's first write, on a machine whose service has mounts of its own.
const STAGING: &str = "/etc/.machinist";

/// A machine that is updated from one config to the other and back.
struct Crashing {
    machine: Machine,
    letter: &'static str,
    /// The machine's file tree on each config.
    looks: BTreeMap<&'static str, Tree>,
    reboots: bool,
    /// From the first to the last write of an update.
    writes: Duration,
    /// From the save of a config to the end of its update, or to its reboot.
    whole: Duration,
    /// The digest of the config that was verified last.
    verified: String,
    found: BTreeMap<&'static str, usize>,
}

impl Crashing {
    /// Updates from `a` to `b` and back without a crash, and records file trees and durations.
    fn new(name: &str, reboots: bool) -> Self {
        let mut machine = Machine::build(name)
            .machinist()
            .file("/etc/machinist/machinist.yaml", SETTINGS)
            .file("/etc/systemd/system/machinist.service.d/10-held.conf", HELD)
            .boot();
        // Reboots first, so that files which a first and a second boot create in /etc are part of
        // the recorded trees.
        machine.reboot();
        let mut crashing = Self {
            machine,
            letter: "b",
            looks: BTreeMap::new(),
            reboots,
            writes: Duration::ZERO,
            whole: Duration::ZERO,
            verified: String::new(),
            found: BTreeMap::new(),
        };
        // The first start finds a config; later ones find the agent running.
        for _ in 0..3 {
            let asked = jiff::Timestamp::now();
            crashing.ask("");
            crashing.machine.start_agent();
            let status = crashing.run_to_the_end();
            crashing.record_phase_times(asked, &status);
            let look = crashing.read_tree();
            let known = crashing
                .looks
                .entry(crashing.letter)
                .or_insert_with(|| look.clone());
            let different = differences(known, &look);
            assert_eq!(different, [""; 0], "twice on config {}", crashing.letter);
        }
        crashing
    }

    fn record_phase_times(&mut self, asked: jiff::Timestamp, status: &Value) {
        let update = &status["updates"][0];
        let since = |time: &Value| {
            let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
            Duration::try_from(time.duration_since(asked)).unwrap_or_default()
        };
        let phase = |name: &str| {
            let phases = update["phases"].as_array().unwrap();
            let found = phases.iter().find(|phase| phase["name"] == name);
            found.unwrap_or_else(|| panic!("{name} is not in {update:#}"))
        };
        self.writes = since(&phase("Committing")["finished"]) - since(&phase("Staging")["started"]);
        let end = if self.reboots {
            &phase("RebootPending")["started"]
        } else {
            &update["finished"]
        };
        self.whole = since(end);
    }

    /// Two of three moments fall into the writing, the shorter part, and are counted from its
    /// begin: how long it takes until then depends on the host's other load.
    fn moment(&self, round: usize, dice: &mut Dice) -> Moment {
        let writing = round % 3 != 2;
        let after = dice.below(if writing { self.writes } else { self.whole });
        Moment { writing, after }
    }

    fn read_tree(&self) -> Tree {
        self.machine.tree(TREES, OURS)
    }

    fn other(&self) -> &'static str {
        if self.letter == "a" { "b" } else { "a" }
    }

    /// Saves the other config and runs `then` inside the machine immediately afterwards; returns
    /// what that printed.
    fn ask(&mut self, then: &str) -> String {
        let other = config(self.other(), self.reboots);
        self.machine.write("/etc/machinist/machine.d/.next", other);
        self.machine.sh(&format!(
            "cd /etc/machinist/machine.d; mv .next 50-crash.yaml; {then}"
        ))
    }

    /// Calls `ask`, which asks for an update, until it has seen the update's first write. A busy host
    /// may delay it until the update has ended.
    fn until_seen(&mut self, what: &str, mut ask: impl FnMut(&mut Self) -> bool) {
        for _ in 0..5 {
            if ask(self) {
                return;
            }
            println!("lab: {what}: the update ended unseen");
            self.is_whole(what);
        }
        panic!("{what}: every update ended unseen");
    }

    /// Waits until the machine is verified on the desired config.
    fn run_to_the_end(&mut self) -> Value {
        let what = "the update to finish";
        let status = self.machine.wait_status(what, wait::seconds(90), |status| {
            let config = &status["config"];
            // PID 1 is killed a moment before the agent, which may have recorded that failure and
            // retries.
            let failure = &status["failure"];
            assert!(
                failure.is_null() || failure["retryable"] == true,
                "{status:#}"
            );
            status["phase"] == "Idle"
                && failure.is_null()
                && config["current"] == config["desired"]
                && config["digest"] != *self.verified
        });
        self.letter = self.other();
        self.verified = digest(&status);
        assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");
        status
    }

    /// Asserts that recovery has left one of the two configs, and counts which.
    fn judge(&mut self, what: &str) {
        let look = self.read_tree();
        let (old, new) = (&self.looks[self.letter], &self.looks[self.other()]);
        let found = if look == *old {
            "the old config"
        } else if without_leftovers(&look, old, new) == *new {
            "the new config"
        } else {
            panic!(
                "{what}: a mix. Against the old: {:#?} Against the new: {:#?}",
                differences(old, &look),
                differences(new, &look)
            )
        };
        *self.found.entry(found).or_default() += 1;
    }

    fn is_whole(&mut self, what: &str) {
        self.run_to_the_end();
        let kept = self.machine.root().join("var/lib/machinist/drifted");
        assert!(!kept.exists(), "{what}: nothing else changed");
        let different = differences(&self.looks[self.letter], &self.read_tree());
        assert_eq!(
            different, [""; 0],
            "{what}: not what config {} asks for",
            self.letter
        );
    }
}

/// Directories that only the old config needed stay, empty, until the new one is verified.
fn without_leftovers(look: &Tree, old: &Tree, new: &Tree) -> Tree {
    let is_leftover = |path: &String, what: &String| {
        let below = format!("{path}/");
        let empty = !look.keys().any(|other| other.starts_with(&below));
        empty && what.ends_with(" directory") && !new.contains_key(path) && old.contains_key(path)
    };
    let kept = look.iter().filter(|(path, what)| !is_leftover(path, what));
    kept.map(|(path, what)| (path.clone(), what.clone()))
        .collect()
}

#[test]
fn an_agent_kill_at_any_moment_leaves_one_config_and_the_update_completes() {
    let mut dice = Dice::new();
    let mut crashing = Crashing::new("killed", false);
    let (writes, whole) = (crashing.writes, crashing.whole);
    println!("lab: figure: files are written for {writes:.0?} of {whole:.1?}");
    for round in 0..rounds(8, 50) {
        let moment = crashing.moment(round, &mut dice);
        let what = format!("round {round}, killed at {moment:?}");
        let agent = crashing.machine.property("machinist", "MainPID");
        let after = moment.after.as_secs_f64();
        crashing.until_seen(&what, |crashing| {
            let staged = if moment.writing {
                format!(
                    "until set -- {STAGING}/*/* && [ -e \"$1\" ]; do read -r word rest <{LETTERED}; \
                     [ \"$word\" != {} ] || {{ echo unseen; exit; }}; sleep 0.002; done;",
                    crashing.other()
                )
            } else {
                String::new()
            };
            let kill = format!("{staged} sleep {after:.4}; kill -9 {agent}");
            crashing.ask(&kill).is_empty()
        });
        crashing
            .machine
            .wait("the agent to be dead", wait::seconds(10), || {
                crashing.machine.property("machinist", "ActiveState") == "failed"
            });
        // Recovers as the boot does; every fourth time the agent itself finds the interrupted
        // update.
        if round % 4 != 3 {
            crashing.machine.exec(&["machinist", "recover"]);
            crashing.judge(&what);
        }
        crashing.machine.exec(&["systemctl", "start", "machinist"]);
        crashing.is_whole(&what);
    }
    println!("lab: figure: after the recovery: {:?}", crashing.found);
}

#[test]
fn a_power_loss_at_any_moment_leaves_one_config_and_the_update_completes() {
    let seed = Dice::new().0;
    // In parallel: mostly each of them waits for its own boots and time-outs.
    let machines = rounds(2, 4);
    let given = std::env::var("MACHINIST_LAB_LOSSES").ok();
    let given = given.map(|losses| losses.parse().expect("MACHINIST_LAB_LOSSES is a number"));
    // Losses per machine. Fewer, where the host has other work: runs add up.
    let losses = given.unwrap_or(rounds(1, 50));
    let begun = Instant::now();
    let found = std::thread::scope(|scope| {
        let one = |number: usize| move || lose_power(number, losses, seed);
        let threads: Vec<_> = (0..machines)
            .map(|number| scope.spawn(one(number)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .collect::<Result<Vec<_>, _>>()
            .expect("every machine comes to its end")
    });
    let mut total = BTreeMap::new();
    for (what, count) in found.iter().flatten() {
        *total.entry(what).or_insert(0) += count;
    }
    println!(
        "lab: figure: seed {seed}: {} power losses on {machines} machines in {:.0?}: after the recovery {total:?}; \
         each update then came to its end",
        machines * losses,
        begun.elapsed()
    );
    assert_eq!(total.values().sum::<usize>(), machines * losses);
}

/// Cuts a machine's power `losses` times, and returns how often recovery found each state. The
/// updates of every second machine reboot.
fn lose_power(number: usize, losses: usize, seed: u64) -> BTreeMap<&'static str, usize> {
    let reboots = number % 2 == 1;
    let name = format!("powerless-{number}");
    // A part of the seed's sequence that does not overlap with another machine's.
    let mut dice = Dice(seed ^ ((number as u64) << 48));
    let mut crashing = Crashing::new(&name, reboots);
    for round in 0..losses {
        let moment = crashing.moment(round, &mut dice);
        let what = format!("seed {seed}, {name}, round {round}, no power at {moment:?}");
        let root = crashing.machine.root();
        let [staging, lettered] = [STAGING, LETTERED].map(|path| root.join(&path[1..]));
        crashing.until_seen(&what, |crashing| {
            crashing.ask("");
            let (mut seen, other) = (!moment.writing, crashing.other());
            wait::closely("the moment to count from", wait::seconds(60), || {
                seen |= staging.exists();
                let text = std::fs::read_to_string(&lettered).unwrap_or_default();
                seen || text.starts_with(other)
            });
            seen
        });
        let then = Instant::now() + moment.after;
        wait::closely("the moment", wait::seconds(60), || Instant::now() >= then);
        crashing.machine.kill();
        crashing.machine.write(HOLD, "");
        crashing.machine.power_on();
        let recovery = crashing.machine.property("machinist-recover", "Result");
        assert_eq!(recovery, "success", "{what}");
        crashing.judge(&what);
        // The agent may continue with a reboot, and that would interrupt a blocking `systemctl
        // start`.
        let go_on = format!("rm {HOLD}; systemctl start --no-block machinist");
        crashing.machine.sh(&go_on);
        crashing.is_whole(&what);
        if (round + 1) % 10 == 0 {
            println!(
                "lab: {name}: {} of {losses}: {:?}",
                round + 1,
                crashing.found
            );
        }
    }
    println!(
        "lab: figure: {name}, reboots: {reboots}: {:?}",
        crashing.found
    );
    crashing.found
}
