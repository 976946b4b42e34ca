//! Settings: a file together with an environment. Problems name the file and a line that exists.
use machinist_status::settings::{Fragment, SettingOrigin, SettingsFile, SettingsInputs, load};

pub(crate) fn check(text: &str) {
    let lines = u64::try_from(text.split(['\n', '\r']).count()).unwrap();
    let _ = Fragment::parse("a.yaml", text);
    let file = |content: &str| SettingsFile {
        name: "a.yaml".to_owned(),
        content: content.as_bytes().to_vec(),
        owner: 0,
        mode: 0o644,
    };
    let read = load(SettingsInputs {
        files: vec![file(text), file("update: {reboot: ask}\n")],
        ..SettingsInputs::default()
    });
    if let Err(error) = read {
        assert!(!error.problems.is_empty());
        for problem in &error.problems {
            assert!(!problem.message.is_empty());
            if let SettingOrigin::File { line, .. } = &problem.at {
                // Line 0 means the file as a whole.
                assert!(*line <= lines, "{problem:?}");
            }
        }
    }
    // The same text as the values of variables.
    let variables = text.lines().enumerate().map(|(number, line)| {
        let name = [
            "MACHINIST_UPDATE__REBOOT",
            "MACHINIST_SOURCE",
            "MACHINIST_X__Y",
        ][number % 3];
        (name.to_owned(), line.to_owned())
    });
    let _ = load(SettingsInputs {
        environment: variables.take(3).collect(),
        ..SettingsInputs::default()
    });
}
