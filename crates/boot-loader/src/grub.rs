//! GRUB 2: its script language, its environment block, and kernel arguments in both.
//!
//! The rules are those of GRUB's manual ("Shell-like scripting", "The GRUB environment block") and, where that is
//! silent, of its sources: `grub-core/script/yylex.l` for words, `grub-core/lib/cmdline.c` for the command line that
//! the kernel gets.

mod arguments;
mod bls;
mod boot;
mod environment_block;
mod expansion;
mod menu;
mod script;
mod simulated_grub;
mod test_command;
mod words;

pub use self::{
    arguments::{
        ArgumentFault, as_loaded, default_file, kernel_command_line, script_word_list, script_words,
    },
    boot::{BootError, GrubFiles, KernelBoot},
    environment_block::{BlockError, EnvironmentBlock},
    menu::MenuEntry,
    simulated_grub::SimulatedGrub,
    words::ScriptError,
};

#[cfg(test)]
mod tests;
