//! The simulated loader on entries as kernel-install writes them, and beside bootctl.

use super::{pattern::matches, *};

#[derive(Clone, Default)]
struct Files {
    config: Option<String>,
    entries: Vec<(String, String)>,
    missing: Vec<String>,
}

impl Files {
    fn entry(mut self, file: &str, sort_key: &str, version: &str) -> Self {
        let key = match sort_key {
            "" => String::new(),
            _ => format!("sort-key {sort_key}\nmachine-id 1234\n"),
        };
        let text = format!(
            "title Debian\n{key}version {version}\noptions root=UUID=1 ro\noptions quiet\nlinux /{version}/linux\n\
             initrd /{version}/initrd\n"
        );
        self.entries.push((file.to_owned(), text));
        self
    }

    fn config(mut self, text: &str) -> Self {
        self.config = Some(text.to_owned());
        self
    }

    fn next(&self, variables: &LoaderVariables) -> String {
        let loader = SimulatedSystemdBoot::new(self, variables, "x64");
        loader
            .next()
            .map(|entry| entry.file.clone())
            .unwrap_or_default()
    }
}

impl LoaderFiles for Files {
    fn loader_config(&self) -> Option<String> {
        self.config.clone()
    }

    fn entries(&self) -> Vec<(String, String)> {
        self.entries.clone()
    }

    fn has_kernel(&self, entry: &MenuEntry) -> bool {
        entry
            .kernel
            .as_ref()
            .is_some_and(|kernel| !self.missing.contains(kernel))
    }
}

#[test]
fn the_newest_entry_of_the_first_sort_key_is_entered() {
    let files = Files::default()
        .entry("1234-6.1.conf", "debian", "6.1")
        .entry("1234-6.12.conf", "debian", "6.12")
        .entry("1234-6.9.conf", "debian", "6.9")
        .entry("zz.conf", "", "7")
        .entry("other.conf", "fedora", "9");
    let loader = SimulatedSystemdBoot::new(&files, &LoaderVariables::default(), "x64");
    let menu: Vec<_> = loader
        .menu()
        .iter()
        .map(|entry| entry.file.as_str())
        .collect();
    let order = [
        "1234-6.12.conf",
        "1234-6.9.conf",
        "1234-6.1.conf",
        "other.conf",
        "zz.conf",
    ];
    assert_eq!(menu, order);
    let entry = loader.next().unwrap();
    assert_eq!(entry.options, "root=UUID=1 ro quiet");
    assert_eq!(entry.initrds, ["/6.12/initrd"]);
    let mut files = files;
    files.missing.push("/6.12/linux".to_owned());
    assert_eq!(files.next(&LoaderVariables::default()), "1234-6.9.conf");
}

#[test]
fn a_counted_entry_is_entered_as_often_as_it_says_and_then_the_last_one() {
    let mut files = Files::default()
        .entry("1234-6.12.conf", "debian", "6.12")
        .entry("1234-6.12.machinist1+1.conf", "debian", "6.12.machinist1");
    let loader = SimulatedSystemdBoot::new(&files, &LoaderVariables::default(), "x64");
    let (entry, after) = loader.boot().unwrap();
    assert_eq!(entry.name(), "1234-6.12.machinist1.conf");
    assert_eq!(after, "1234-6.12.machinist1+0-1.conf");
    files.entries[1].0 = after;
    assert_eq!(files.next(&LoaderVariables::default()), "1234-6.12.conf");
}

#[test]
fn variables_and_config_select_in_their_order() {
    let files = Files::default()
        .entry("a.conf", "debian", "1")
        .entry("b.conf", "debian", "2")
        .entry("c.conf", "debian", "3");
    let variables = |one_shot: &str, default: &str| LoaderVariables {
        one_shot: (!one_shot.is_empty()).then(|| one_shot.to_owned()),
        default: (!default.is_empty()).then(|| default.to_owned()),
        last_booted: Some("b.conf".to_owned()),
    };
    for (config, one_shot, default, next) in [
        ("", "", "", "c.conf"),
        ("default a.conf", "", "", "a.conf"),
        ("default\tA*\n", "", "", "a.conf"),
        ("# default a.conf", "", "", "c.conf"),
        ("default missing", "", "", "c.conf"),
        ("default @saved", "", "", "b.conf"),
        ("default @other", "", "", "c.conf"),
        ("default a.conf", "", "b.conf", "b.conf"),
        ("default a.conf", "c.conf", "b.conf", "c.conf"),
        ("default a.conf", "missing", "missing", "a.conf"),
        ("default a.conf", "", "@saved", "b.conf"),
    ] {
        let files = files.clone().config(config);
        assert_eq!(
            files.next(&variables(one_shot, default)),
            next,
            "{config:?} {one_shot} {default}"
        );
    }
}

#[test]
fn a_default_that_no_entry_of_the_menu_matches_is_found() {
    let files = Files::default().entry("a.conf", "debian", "1");
    for (config, default, unmatched) in [
        ("", "", None),
        ("default A*", "", None),
        ("default auto-windows", "", Some("auto-windows")),
        ("default auto-windows", "a.conf", None),
        ("default a.conf", "auto-windows", Some("auto-windows")),
        ("default @saved", "@saved", None),
    ] {
        let files = files.clone().config(config);
        let variables = LoaderVariables {
            default: (!default.is_empty()).then(|| default.to_owned()),
            ..LoaderVariables::default()
        };
        let loader = SimulatedSystemdBoot::new(&files, &variables, "x64");
        assert_eq!(
            loader.unmatched_default(),
            unmatched,
            "{config:?} {default}"
        );
    }
}

#[test]
fn names_with_counters_are_parsed_as_the_loader_does() {
    let counter = |left, done| Some(BootCounter { left, done });
    for (file, counter, after) in [
        ("a+3.conf", counter(3, 0), "a+2-1.conf"),
        ("a+3-0.conf", counter(3, 0), "a+2-1.conf"),
        ("a+b+1-2.conf", counter(1, 2), "a+b+0-3.conf"),
        ("a+0-3.conf", counter(0, 3), "a+0-4.conf"),
        ("a.conf", None, "a.conf"),
        ("a+x.conf", None, "a+x.conf"),
        ("a+1-.conf", None, "a+1-.conf"),
        ("a+1.2.conf", None, "a+1.2.conf"),
    ] {
        let entry = MenuEntry::parse(file, "linux /l", "x64").unwrap();
        assert_eq!(
            (entry.counter, entry.file_after_boot().as_str()),
            (counter, after),
            "{file}"
        );
    }
    for (file, text) in [
        (".a.conf", "linux /l"),
        ("auto-a.conf", "linux /l"),
        ("a.conf.new", "linux /l"),
        ("a.conf", "title t"),
        ("a.conf", "linux /l\narchitecture ia32"),
    ] {
        assert_eq!(MenuEntry::parse(file, text, "x64"), None, "{file} {text:?}");
    }
}

#[test]
fn patterns_match_as_in_the_loader() {
    for (pattern, text, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "abc", true),
        ("*c", "abcc", true),
        ("a*b*c", "axxbxc", true),
        ("a*b*c", "axxbx", false),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("[a-c]x", "bx", true),
        ("[a-c]x", "dx", false),
        ("[]]", "]", true),
        ("[a-]", "-", true),
        ("[a-c-f]", "-", true),
        ("[a-c-f]", "e", false),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("[a", "a", false),
        ("*", "", true),
        ("**a", "a", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}
