//! bootc on the files of a machine: it stages an image with the kernel arguments of the image.

use std::sync::Mutex;

use super::{
    ostree_files::{Files, LOCKED},
    ostree_registry::OstreeRegistry,
    rpm_ostree_daemon::Packages,
};

/// The program, and what it was asked for.
#[derive(Default)]
pub(crate) struct BootcProgram {
    /// The images that it was to stage, as origins name them.
    pub(crate) switches: Mutex<Vec<String>>,
}

impl BootcProgram {
    /// Stages an image as `bootc switch` does, and locks it, also after a failure. Packages of the running deployment
    /// are not in the new one: bootc refuses only `upgrade` where there are some, and prints no warning here.
    pub(super) fn switch(
        &self,
        files: &Files,
        registry: &OstreeRegistry,
        arguments: &[&str],
        is_failing: bool,
    ) -> Result<(), String> {
        let reference = requested_image(arguments);
        self.switches.lock().unwrap().push(reference.clone());
        let booted = files.booted();
        let origin = files.read(&format!("ostree/deploy/debian/deploy/{booted}.origin"));
        let is_same = origin.contains(&format!("={reference}\n"));
        // It knows no image of a deployment that rpm-ostree has changed.
        if is_same && Packages::of_origin(&origin) == Packages::default() {
            // "Image specification is unchanged."
            return Ok(());
        }
        let pull = ["pull", "--quiet", "/ostree/repo", &reference];
        registry.run(&files.directory, &pull)?;
        let mut menu = files.menu().into_iter();
        let (_, options) = menu.find(|(name, _)| *name == booted).unwrap();
        let mut words: Vec<String> = options.split(' ').map(str::to_owned).collect();
        words.extend(registry.arguments());
        let commit = registry.pulled(&files.directory, &reference);
        let name = files.new_deployment(&commit);
        let origin = format!("[origin]\ncontainer-image-reference={reference}\n");
        let file = format!("ostree/deploy/debian/deploy/{name}.origin");
        files.write(&file, origin);
        files.remove_staged();
        files.write_staged(&name, &words);
        files.write(LOCKED, "");
        files.overtake("switch");
        match is_failing {
            true => Err("Pulling bound images".to_owned()),
            false => Ok(()),
        }
    }
}

/// The image in the arguments of systemd-inhibit, which starts a shell that starts bootc.
fn requested_image(arguments: &[&str]) -> String {
    let [
        "--what=shutdown",
        "--mode=block",
        _,
        _,
        "/bin/sh",
        "-c",
        script,
        _,
        policy @ ..,
        "--transport",
        transport,
        name,
    ] = arguments
    else {
        panic!("{arguments:?}");
    };
    let switch = "/usr/bin/bootc switch --quiet \"$@\"; code=$?; ";
    let lock = "|| /usr/bin/ostree admin lock-finalization || code=1; exit $code";
    let is_locked_always = script.contains(switch) && script.ends_with(lock);
    assert!(is_locked_always, "{script}");
    match (policy, *transport) {
        (["--enforce-container-sigpolicy"], "registry") => {
            format!("ostree-image-signed:docker://{name}")
        }
        ([], "registry") => format!("ostree-unverified-registry:{name}"),
        ([], transport) => format!("ostree-unverified-image:{transport}:{name}"),
        other => panic!("{other:?}"),
    }
}
