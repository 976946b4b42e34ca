//! Implements `machinist vendor-check`, which plays the agent's part for a device driver in the
//! vendor's own tests.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    pin::pin,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use tokio::sync::watch;

use super::{
    Exit, OutputFormatArg, caller_path::CallerPath, output::unused_file_name, print_data, short,
};
use machinist_base::{
    abs_path::AbsPath,
    shutdown::{SHUTDOWN_TIMEOUT, Tasks},
};
use machinist_device::{registry, vendor_declaration};
use machinist_device_plugins::vendor_api::conformance::{
    ConformanceCheck, ProgramExit, RuleResult, RuleVerdict, StepTimeouts,
};
use machinist_plan::escape_line;
use machinist_rootfs::{Meta, Root};

/// The environment variable with the socket's path for the started program.
const SOCKET_ENV: &str = "MACHINIST_VENDOR_SOCKET";

/// Arguments of `vendor-check`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("program").required(true)))]
#[command(after_help = "\
Starts COMMAND with MACHINIST_VENDOR_SOCKET set, tests it against the rules of the vendor API in place of the \
agent, and prints a result for each rule. Paths are checked against the vendor's file; hardware is not accessed. \
The program's output goes to stderr. Exits with 0 if no rule was broken, else with 1.

Examples:
  machinist vendor-check --file acme.yaml -- ./acme-devices --verbose
  machinist vendor-check --file acme.yaml --socket /tmp/agent.sock")]
pub struct VendorCheckArgs {
    /// The vendor's file, as it will be installed in vendors.d
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Wait on this socket for a program that is started elsewhere
    #[arg(long, value_name = "PATH", group = "program")]
    pub socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", last = true, group = "program")]
    pub command: Vec<String>,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(args: &VendorCheckArgs) -> anyhow::Result<Exit> {
    let slash = Root::open(Path::new("/"))?;
    let shown = args.file.display().to_string();
    let whole = machinist_agent::plain(&std::path::absolute(&args.file)?)?;
    let read = registry::text_of(&slash, &whole, &shown).map_err(|refusal| vec![refusal]);
    let vendor = match read.and_then(|text| vendor_declaration::parse(&shown, &text)) {
        Ok(vendor) => vendor,
        Err(refusals) => {
            for refusal in &refusals {
                super::output::write_error(&format!("{refusal}\n"));
            }
            return Ok(Exit::Failed);
        }
    };
    if vendor.connects != vendor_declaration::VendorTransport::Program {
        let why =
            "its plugin uses the kubelet's device-plugin API, which vendor-check does not test";
        super::output::print_error(&format!("{shown} has connects: plugin; {why}"));
        return Ok(Exit::Failed);
    }
    let found = match &args.socket {
        Some(path) => {
            let socket = CallerPath::of_socket(path)?;
            check(&socket.root, socket.path, vendor, &[])?
        }
        None => {
            let own = CheckDir::make()?;
            let socket = own.0.path.join("agent.sock")?;
            check(&own.0.root, socket, vendor, &args.command)?
        }
    };
    print_data(args.printed.output, &found, |found| page(found))?;
    let broken = found.iter().any(|one| one.verdict == RuleVerdict::Broken);
    Ok(if broken { Exit::Failed } else { Exit::Done })
}

/// A directory that exists during the check.
struct CheckDir(CallerPath);

impl CheckDir {
    fn make() -> anyhow::Result<Self> {
        let name = unused_file_name("machinist-vendor-check-");
        let dir = CallerPath::of(&std::env::temp_dir().join(name))?;
        // An existing directory belongs to another process.
        dir.root.build_dir(&dir.path, &Meta::unowned(0o700))?;
        Ok(Self(dir))
    }
}

impl Drop for CheckDir {
    fn drop(&mut self) {
        // On failure it remains among the other temporary files.
        let _ = self.0.root.remove_empty_dir(&self.0.path);
    }
}

fn check(
    root: &Root,
    path: AbsPath,
    vendor: vendor_declaration::Vendor,
    command: &[String],
) -> anyhow::Result<Vec<RuleResult>> {
    short()?.block_on(async {
        let tasks = Tasks::new();
        let socket = root.host_path(&path);
        let check = ConformanceCheck::listen(root, path, vendor, &tasks)?;
        let program = command
            .split_first()
            .map(|(name, rest)| start(name, rest, &socket));
        let program = program.transpose()?;
        let found = match program {
            None => check.run(StepTimeouts::default()).await,
            Some(program) => check_program(check, program).await,
        };
        // The findings are the result; a task that does not end does not matter.
        let _ = tasks.finish(SHUTDOWN_TIMEOUT).await;
        Ok(found)
    })
}

/// The interval for checking whether the program still runs.
const PROGRAM_POLL_INTERVAL: Duration = Duration::from_millis(100);

async fn check_program(check: ConformanceCheck, mut program: VendorProgram) -> Vec<RuleResult> {
    let (tell, ended) = watch::channel(None);
    let mut running = pin!(check.of_program(ended).run(StepTimeouts::default()));
    let mut looks = tokio::time::interval(PROGRAM_POLL_INTERVAL);
    let found = loop {
        tokio::select! {
            found = &mut running => break found,
            // Cancel safe: the next check happens anyway.
            _ = looks.tick(), if tell.borrow().is_none() => {
                if let Some(status) = program.ended() {
                    tell.send_replace(Some(ProgramExit {
                        how: status.to_string(),
                        well: status.success(),
                    }));
                }
            }
        }
    };
    if let Some(status) = program.ended() {
        let background = match status.success() {
            true => "; its background process was tested through the socket and is left running",
            false => "",
        };
        super::output::print_error(&format!("the program exited: {status}{background}"));
    }
    found
}

/// The started program, which is killed on drop.
struct VendorProgram(Child);

impl VendorProgram {
    /// How it ended; none if it still runs.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for VendorProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the driver is tested by its vendor, possibly without systemd"
)]
fn start(name: &str, arguments: &[String], socket: &Path) -> anyhow::Result<VendorProgram> {
    let child = Command::new(name)
        .args(arguments)
        .env(SOCKET_ENV, socket)
        .stdin(Stdio::null())
        // stdout is reserved for the findings.
        .stdout(std::io::stderr())
        .spawn();
    Ok(VendorProgram(
        child.with_context(|| format!("cannot start {name}"))?,
    ))
}

/// One line per rule; broken rules include the observation.
fn page(found: &[RuleResult]) -> String {
    let mut text = String::new();
    for one in found {
        let word = match one.verdict {
            RuleVerdict::Kept => "kept",
            RuleVerdict::Broken => "BROKEN",
            RuleVerdict::Skipped => "skipped",
        };
        let seen = match one.seen.as_str() {
            "" => String::new(),
            seen => format!(": {seen}"),
        };
        // Writing to a String cannot fail.
        let line = escape_line(&format!("{}{seen}", one.rule));
        let _ = writeln!(text, "{word:<8} {line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_check_prints_one_line_per_rule() {
        let finding = |verdict, seen: &str| RuleResult {
            rule: "it answers".to_owned(),
            verdict,
            seen: seen.to_owned(),
        };
        let found = [
            finding(RuleVerdict::Kept, ""),
            finding(RuleVerdict::Broken, "no answer"),
            finding(RuleVerdict::Skipped, "no session"),
        ];
        let expected = "kept     it answers\nBROKEN   it answers: no answer\nskipped  it answers: no session\n";
        assert_eq!(page(&found), expected);
    }
}
