//! A menu of systemd-boot, whose entries begin with a line `--- NAME`, and loader.conf before them: a simulated boot
//! enters an entry of the menu.
use machinist_boot_loader::systemd_boot::{
    LoaderFiles, LoaderVariables, MenuEntry, SimulatedSystemdBoot,
};

struct Menu<'t>(&'t str);

impl LoaderFiles for Menu<'_> {
    fn loader_config(&self) -> Option<String> {
        let config = self.0.split("--- ").next();
        config.map(str::to_owned)
    }

    fn entries(&self) -> Vec<(String, String)> {
        let entries = self.0.split("--- ").skip(1);
        let entries = entries.map(|entry| entry.split_once('\n').unwrap_or((entry, "")));
        entries
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .collect()
    }

    fn has_kernel(&self, _entry: &MenuEntry) -> bool {
        true
    }
}

pub(crate) fn check(text: &str) {
    let variables = LoaderVariables {
        one_shot: text.lines().last().map(str::to_owned),
        ..LoaderVariables::default()
    };
    let loader = SimulatedSystemdBoot::new(&Menu(text), &variables, "x64");
    assert_eq!(loader.boot().is_some(), !loader.menu().is_empty());
    if let Some((entry, after)) = loader.boot() {
        assert!(loader.menu().contains(entry));
        let entered = MenuEntry::parse(&after, "linux /l", "x64").unwrap();
        assert_eq!(entered.counter.is_some(), entry.counter.is_some());
        assert_eq!(entered.name(), entry.name());
    }
}
