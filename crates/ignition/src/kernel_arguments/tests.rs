use super::*;

fn read(text: &str) -> Vec<(String, Option<String>)> {
    let all = KernelCommandLine::parse(text).0.into_iter();
    all.map(|one| (one.name, one.value)).collect()
}

/// Results of the kernel's `next_arg` for these texts.
#[test]
fn kernel_command_line_is_split_as_by_the_kernel() {
    for (text, expected) in [
        ("", &[][..]),
        (
            " baz=test bar=hello world",
            &[
                ("baz", Some("test")),
                ("bar", Some("hello")),
                ("world", None),
            ],
        ),
        ("a=\"b c\"", &[("a", Some("b c"))]),
        ("\"a=b c\"", &[("a", Some("b c"))]),
        ("\"a b\" c", &[("a b", None), ("c", None)]),
        ("a=\"b\"c", &[("a", Some("b\"c"))]),
        ("a=b\"c d\"", &[("a", Some("b\"c d\""))]),
        ("a=\"b\\\" c=d\"", &[("a", Some("b\\")), ("c", Some("d\""))]),
        ("a=b=c", &[("a", Some("b=c"))]),
        ("=a", &[("=a", None)]),
        ("=a=b", &[("=a", Some("b"))]),
        ("a=", &[("a", Some(""))]),
        ("a=\"", &[("a", Some(""))]),
        ("\"a=\"b\"\" c", &[("a", Some("b\"")), ("c", None)]),
        ("\"a\"=\"b", &[("a\"", Some("b"))]),
        ("printk.always-on\n", &[("printk.always_on", None)]),
        ("a=\"b c", &[("a", Some("b c"))]),
        ("\u{b}a\tb", &[("a", None), ("b", None)]),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
            .collect();
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn running_kernel_arguments_are_matched_regardless_of_spelling() {
    for (wanted, running, missing) in [
        (
            "cgroup_no_v1=\"all\" psi=0",
            "quiet cgroup_no_v1=all psi=0",
            "",
        ),
        ("dyndbg=\"file x.c +p\"", "\"dyndbg=file x.c +p\" ro", ""),
        (
            "rd.driver-blacklist=nouveau",
            "rd.driver_blacklist=nouveau",
            "",
        ),
        ("a=x-y", "a=x_y", "a=x-y"),
        ("quiet quiet", "quiet", ""),
        (
            "console=tty0 console=ttyS0",
            "console=tty0 a console=ttyS1 console=ttyS0",
            "",
        ),
        (
            "console=tty0 console=ttyS0",
            "console=ttyS0 console=tty0",
            "console=ttyS0",
        ),
        ("b a", "a b", ""),
        ("single", "ro -- single", "single"),
        ("-- single", "ro -- single", ""),
        ("-- single", "ro single", "single"),
        ("-- a-b", "-- a_b", "a-b"),
    ] {
        let (wanted, running) = (
            KernelCommandLine::parse(wanted),
            KernelCommandLine::parse(running),
        );
        let found: Vec<_> = wanted
            .missing_from(&running)
            .iter()
            .map(|one| one.as_str())
            .collect();
        assert_eq!(found.join(" "), missing, "{wanted} in {running}");
    }
}

#[test]
fn a_message_names_only_arguments_that_are_absent() {
    for (wanted, running, absent) in [
        (
            "console=tty0 console=ttyS0",
            "console=ttyS0",
            "console=tty0",
        ),
        (
            "console=tty0 console=ttyS0",
            "ro",
            "console=tty0 console=ttyS0",
        ),
        (
            "console=tty0 console=ttyS0",
            "console=ttyS0 console=tty0",
            "console=ttyS0",
        ),
    ] {
        let [wanted, running] = [wanted, running].map(KernelCommandLine::parse);
        let found = wanted.absent_from(&running).into_iter();
        let found: KernelCommandLine = found.cloned().collect();
        assert_eq!(found.to_string(), absent, "{wanted} in {running}");
    }
}

#[test]
fn a_repeated_kernel_argument_is_missing_if_it_is_present_less_often() {
    for (wanted, running, missing) in [
        ("quiet quiet", "quiet", "quiet"),
        ("l=1 l=2 l=1", "a l=1 l=2 b l=1", ""),
        ("l=1 l=2 l=1", "l=2 l=1", "l=2 l=1"),
        ("l=1 l=1", "", "l=1 l=1"),
        (
            "console=tty0 console=ttyS0",
            "console=ttyS0",
            "console=tty0 console=ttyS0",
        ),
    ] {
        let [wanted, running] = [wanted, running].map(KernelCommandLine::parse);
        let found = wanted.missing_with_repeats_from(&running).into_iter();
        let found: KernelCommandLine = found.cloned().collect();
        assert_eq!(found.to_string(), missing, "{wanted} in {running}");
    }
}

#[test]
fn kernel_arguments_with_impossible_characters_are_rejected() {
    for (text, fault) in [
        ("a=\"b c\"", false),
        ("a=\"b", true),
        ("a\0b", true),
        ("a\nb", true),
        ("a=\u{a0}b", true),
        ("a=\"b\" c=à", true),
        ("a=\"à\" b=c", true),
        ("a=é", false),
    ] {
        assert_eq!(kernel_argument_fault(text).is_some(), fault, "{text:?}");
    }
    assert!(!KernelCommandLine::parse(&"a".repeat(MAX_COMMAND_LINE_BYTES - 1)).is_too_long());
    assert!(KernelCommandLine::parse(&"a".repeat(MAX_COMMAND_LINE_BYTES)).is_too_long());
}

#[test]
fn appended_kernel_arguments_precede_those_for_init() {
    let mut line = KernelCommandLine::parse("ro -- single");
    line.append(&KernelCommandLine::parse("quiet -- x"));
    assert_eq!(line.to_string(), "ro quiet -- single x");
    assert_eq!(KernelCommandLine::parse(&line.to_string()), line);
}

#[test]
fn a_tab_separates_arguments_in_a_config_and_a_line_break_does_not() {
    let refusals = |argument: &str| {
        let text = format!(
            "{{\"kind\": \"MachineConfig\", \"apiVersion\": \"machineconfiguration.openshift.io/v1\", \
             \"metadata\": {{\"name\": \"a\"}}, \"spec\": {{\"kernelArguments\": [\"{argument}\"]}}}}"
        );
        let read = crate::parse(&text, "a.json", &crate::ConfigRules::default());
        let refusals = read.err().unwrap_or_default().into_iter();
        refusals
            .map(|one| one.message.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(refusals("a\\tb=c"), Vec::<String>::new());
    assert_eq!(refusals("a\\nb"), ["contains a line break"]);
}
