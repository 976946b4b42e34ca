//! Reads the settings for the nodes of one pool: `pool.<name>.yaml` beside `machinist.yaml`.

use super::{
    error::SettingsProblem,
    fragment::{Fragment, Leaf},
};
use machinist_base::reason::Reason;

/// Sections and keys that cannot be set per pool, and why.
const FLEET_ONLY_KEYS: [(&str, &str); 3] = [
    ("source", "it is needed before the pool is known"),
    ("cluster", "it is needed before the pool is known"),
    (
        "admin.listen",
        "the probes of the DaemonSet use the same port on every node",
    ),
];

/// The file name of a pool's settings.
pub(super) fn file_name(pool: &str) -> String {
    format!("pool.{pool}.yaml")
}

/// Removes keys that are not allowed in a pool's settings, and returns a problem for each.
pub(super) fn judge(fragment: &mut Fragment) -> Vec<SettingsProblem> {
    let mut problems = Vec::new();
    fragment.leaves.retain(|leaf| match why_not(leaf) {
        Some(_) if leaf.is_left_empty() => false,
        Some(why) => {
            problems.push(refused(leaf, why));
            false
        }
        None => true,
    });
    problems
}

fn why_not(leaf: &Leaf) -> Option<&'static str> {
    let within = |section: &str| {
        let rest = leaf.key.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let found = FLEET_ONLY_KEYS.iter().find(|(section, _)| within(section));
    found.map(|(_, why)| *why)
}

fn refused(leaf: &Leaf, why: &str) -> SettingsProblem {
    SettingsProblem {
        at: leaf.node.at.clone(),
        field: leaf.key.clone(),
        reason: Reason::FeatureUnsupported,
        message: format!("it cannot be set per pool: {why}"),
        expected: "it in machinist.yaml".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::{Reboot, Settings, SettingsError, SettingsFile, SettingsInputs, load};

    fn file(name: &str, content: &str) -> SettingsFile {
        SettingsFile {
            name: name.to_owned(),
            content: content.as_bytes().to_vec(),
            owner: 0,
            mode: 0o644,
        }
    }

    fn with(of_pool: &str, environment: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        load(SettingsInputs {
            files: vec![file(
                "machinist.yaml",
                "update: {reboot: ask, bootAttempts: 3}",
            )],
            of_pool: Some(file("pool.gpu.yaml", of_pool)),
            environment: environment.iter().map(owned).collect(),
            ..SettingsInputs::default()
        })
    }

    fn origin(settings: &Settings, key: &str) -> String {
        let found = settings.effective.iter().find(|one| one.key == key);
        found.unwrap().from.to_string()
    }

    #[test]
    fn pool_settings_override_files_and_are_overridden_by_the_environment() {
        let settings = with("update:\n  reboot: never\n", &[]).unwrap();
        assert_eq!(settings.update.reboot, Reboot::Never);
        assert_eq!(settings.update.boot_attempts, 3);
        assert_eq!(origin(&settings, "update.reboot"), "pool.gpu.yaml:2:11");
        let environment = [("MACHINIST_UPDATE__REBOOT", "auto")];
        let settings = with("update: {reboot: never}", &environment).unwrap();
        assert_eq!(settings.update.reboot, Reboot::Auto);
    }

    #[test]
    fn fleet_wide_settings_in_pool_settings_are_rejected_with_location() {
        let text = "source: dir:/x\ncluster:\n  node: a\nadmin: {listen: 127.0.0.1:1}\nupdate: {rebot: x}\n";
        let problems = with(text, &[]).unwrap_err().problems;
        let told: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 4, "{told:#?}");
        assert!(told[0].starts_with("pool.gpu.yaml:1:9: source: it cannot be set per pool"));
        assert!(told[0].ends_with("expected it in machinist.yaml"));
        assert!(told[1].starts_with("pool.gpu.yaml:3:9: cluster.node: "));
        assert!(told[2].starts_with("pool.gpu.yaml:4:17: admin.listen: "));
        assert!(told[3].contains("update.rebot: unknown key"), "{}", told[3]);
    }
}
