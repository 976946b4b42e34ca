//! Chooses the files to which the keys of a user are written.

use crate::{
    UserFacts,
    sshd_config::{Certainty, KeyOwner, KeyReading, SshdConfig},
};
use machinist_base::abs_path::AbsPath;

/// Relative to the home; read by sshd of Fedora CoreOS and its derivatives.
pub(super) const MANAGED_KEYS_FILE: &str = ".ssh/authorized_keys.d/ignition";
/// Relative to the home; read by every sshd and edited by users.
pub(super) const AUTHORIZED_KEYS_FILE: &str = ".ssh/authorized_keys";

const BOTH: [&str; 2] = [MANAGED_KEYS_FILE, AUTHORIZED_KEYS_FILE];

/// Splits the key files of a user into those that are written and the others. Where no file is certainly read, the keys
/// are in every file that sshd may read: a move could take the login from the user.
pub(super) fn choose(
    sshd: &SshdConfig,
    name: &str,
    account: &UserFacts,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let reading = reading(sshd, name, account);
    let (directory, home) = match reading.map(|found| [found.directory, found.home]) {
        Some([Certainty::Yes, _]) => (true, false),
        Some([_, Certainty::Yes]) => (false, true),
        Some([directory, home]) => {
            let directory = directory == Certainty::Maybe;
            (directory, home == Certainty::Maybe || !directory)
        }
        None => (false, true),
    };
    let wanted = |file: &&str| match **file == *MANAGED_KEYS_FILE {
        true => directory,
        false => home,
    };
    BOTH.into_iter().partition(wanted)
}

/// Whether sshd reads keys from this file of a user, and what decides it.
pub(in super::super) fn is_read(
    sshd: &SshdConfig,
    name: &str,
    account: &UserFacts,
    file: &AbsPath,
) -> (Certainty, String) {
    match reading(sshd, name, account) {
        Some(found) if super::is_shared(file) => (found.home, found.because),
        Some(found) => (found.directory, found.because),
        None => (Certainty::Yes, String::new()),
    }
}

fn reading(sshd: &SshdConfig, name: &str, account: &UserFacts) -> Option<KeyReading> {
    let home = account.home.as_ref()?;
    let uid = account.uid;
    Some(sshd.reading(&KeyOwner { name, uid, home }, BOTH))
}
