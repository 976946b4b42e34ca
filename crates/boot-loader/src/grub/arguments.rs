//! Kernel arguments in GRUB's configuration files.
//!
//! GRUB's `linux` command builds the command line from its own arguments: it puts quotes around one that contains a
//! blank, and a backslash before `\`, `'` and `"`. The kernel knows no backslash. So an argument whose content has one of
//! these characters cannot reach the kernel through GRUB.

use machinist_ignition::{KernelArgument, KernelCommandLine};

/// Why GRUB cannot hand an argument to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentFault {
    /// It has a character before which GRUB puts a backslash.
    #[error("GRUB cannot pass a \\, ' or inner \" to the kernel")]
    Escaped,
    /// It has a line break or another control character.
    #[error("contains a control character")]
    Control,
    /// It is an empty pair of quotes, or nothing but its name's quotes.
    #[error("is empty")]
    Empty,
}

/// The content of an argument, without the quotes that the kernel drops.
fn content(argument: &KernelArgument) -> Result<String, ArgumentFault> {
    let text = argument.as_str();
    // The kernel drops quotes around the whole argument, or around the value.
    let whole = text
        .strip_prefix('"')
        .map(|rest| rest.strip_suffix('"').unwrap_or(rest));
    let content = match (whole, text.split_once("=\"")) {
        (Some(whole), _) => whole.to_owned(),
        (None, Some((name, value))) => {
            format!("{name}={}", value.strip_suffix('"').unwrap_or(value))
        }
        (None, None) => text.to_owned(),
    };
    match content {
        _ if content.is_empty() => Err(ArgumentFault::Empty),
        _ if content.contains(['\\', '\'', '"']) => Err(ArgumentFault::Escaped),
        // Only a blank makes GRUB add quotes.
        _ if content.contains(|c: char| c.is_control()) => Err(ArgumentFault::Control),
        content => Ok(content),
    }
}

/// The arguments as words of a GRUB script, for the command `linux`.
pub fn script_words(
    arguments: &KernelCommandLine,
) -> Result<String, (KernelArgument, ArgumentFault)> {
    Ok(script_word_list(arguments)?.join(" "))
}

/// The arguments as words of a GRUB script, one by one.
pub fn script_word_list(
    arguments: &KernelCommandLine,
) -> Result<Vec<String>, (KernelArgument, ArgumentFault)> {
    let words = in_order(arguments)?;
    Ok(words.iter().map(|content| quote(content)).collect())
}

/// The content of each argument, with the separator before those for init.
fn in_order(arguments: &KernelCommandLine) -> Result<Vec<String>, (KernelArgument, ArgumentFault)> {
    let mut words = Vec::new();
    let mut for_init = false;
    for argument in arguments.iter() {
        if argument.is_for_init() && !for_init {
            for_init = true;
            words.push("--".to_owned());
        }
        let content = content(argument);
        words.push(content.map_err(|fault| (argument.clone(), fault))?);
    }
    Ok(words)
}

/// The arguments as the kernel shows them in a boot: with quotes only where GRUB writes them.
pub fn as_loaded(
    arguments: &KernelCommandLine,
) -> Result<KernelCommandLine, (KernelArgument, ArgumentFault)> {
    let words = in_order(arguments)?;
    Ok(KernelCommandLine::parse(&loader_command_line(&words)))
}

/// Quotes a text that contains no `'` for a GRUB script, if it needs that.
fn quote(content: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+@%^~[]".contains(c);
    match content.chars().all(plain) {
        true => content.to_owned(),
        false => format!("'{content}'"),
    }
}

/// The content of a file in /etc/default/grub.d that appends the arguments to those of every normal entry.
///
/// grub-mkconfig runs it in a shell, and writes the value into grub.cfg without quoting it: the value is a GRUB script.
pub fn default_file(
    arguments: &KernelCommandLine,
) -> Result<String, (KernelArgument, ArgumentFault)> {
    let words = script_words(arguments)?;
    let mut shell = String::new();
    for c in words.chars() {
        if "$`\"\\".contains(c) {
            shell.push('\\');
        }
        shell.push(c);
    }
    Ok(format!(
        "# Kernel arguments of the machine's config, written by machinist.\n\
         GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT {shell}\"\n"
    ))
}

/// The command line that the kernel gets from the arguments of the command `linux`, after the kernel's path.
pub(super) fn loader_command_line(arguments: &[String]) -> String {
    let quoted = arguments.iter().map(|argument| {
        let mut text = String::new();
        for c in argument.chars() {
            if "\\'\"".contains(c) {
                text.push('\\');
            }
            text.push(c);
        }
        match argument.contains(' ') {
            true => format!("\"{text}\""),
            false => text,
        }
    });
    quoted.collect::<Vec<String>>().join(" ")
}

/// The argument that grub.cfg appends to those of a boot without an initial RAM disk.
pub(super) const WITHOUT_INITRD: &str = "panic=-1";

/// The arguments of a command line that GRUB wrote, without those that GRUB adds. `tries_without_initrd` is that of the
/// configuration's [`KernelBoot`](super::KernelBoot).
pub fn kernel_command_line(text: &str, tries_without_initrd: bool) -> KernelCommandLine {
    let line = KernelCommandLine::parse(text);
    let own = line.iter().filter(|argument| !is_added(argument));
    let mut own: KernelCommandLine = own.cloned().collect();
    let last = own.iter().last().cloned();
    if let Some(last) = last.filter(|last| tries_without_initrd && last.as_str() == WITHOUT_INITRD)
    {
        own.remove_last(&last);
    }
    own
}

/// Whether a boot loader added the argument: on Ubuntu, grub.cfg adds `vt.handoff` to graphical boots.
fn is_added(argument: &KernelArgument) -> bool {
    ["BOOT_IMAGE", "initrd", "vt.handoff"].contains(&argument.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<String, ArgumentFault> {
        script_words(&KernelCommandLine::parse(text)).map_err(|(_, fault)| fault)
    }

    #[test]
    fn arguments_are_quoted_for_a_script() {
        for (text, expected) in [
            ("quiet nosmt=force", "quiet nosmt=force"),
            ("a=\"b c\" \"d=e f\"", "'a=b c' 'd=e f'"),
            (
                "dyndbg=\"file drivers/usb/* +p\"",
                "'dyndbg=file drivers/usb/* +p'",
            ),
            ("a=$x b=#y c=;z", "'a=$x' 'b=#y' 'c=;z'"),
            ("quiet -- single x=\"1 2\"", "quiet -- single 'x=1 2'"),
        ] {
            assert_eq!(words(text), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn arguments_that_grub_would_change_are_refused() {
        for (text, fault) in [
            ("a=b\\c", ArgumentFault::Escaped),
            ("a=it's", ArgumentFault::Escaped),
            ("a=b\"c d\"e", ArgumentFault::Escaped),
            ("a=\"b\tc\"", ArgumentFault::Control),
            ("\"\"", ArgumentFault::Empty),
        ] {
            assert_eq!(words(text), Err(fault), "{text}");
        }
    }

    #[test]
    fn arguments_that_grub_adds_are_left_out() {
        let line = "BOOT_IMAGE=/vmlinuz root=x ro panic=-1 panic=-1";
        for (tries_without_initrd, expected) in [
            (false, "root=x ro panic=-1 panic=-1"),
            (true, "root=x ro panic=-1"),
        ] {
            let own = kernel_command_line(line, tries_without_initrd);
            assert_eq!(own.to_string(), expected);
        }
        assert_eq!(
            kernel_command_line("a=1 panic=5", true).to_string(),
            "a=1 panic=5"
        );
    }

    #[test]
    fn a_default_file_is_quoted_for_the_shell_as_well() {
        let file = default_file(&KernelCommandLine::parse("a=$x b=\"`c` d\"")).unwrap();
        let value = file.lines().last().unwrap();
        assert_eq!(
            value,
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT 'a=\\$x' 'b=\\`c\\` d'\""
        );
    }
}
