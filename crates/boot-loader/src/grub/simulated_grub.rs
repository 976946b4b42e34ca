//! Runs GRUB's scripts up to the kernel, to find out what a boot would start.

use std::{collections::BTreeMap, fmt};

use super::{
    EnvironmentBlock, MenuEntry, arguments, bls,
    boot::{BootError, GrubFiles, KernelBoot, OnDisk, on_disk},
    expansion::Variables,
    script::{self, Block, Command},
    test_command,
};

/// The commands that one boot may run. A generated grub.cfg needs some hundred.
const MAX_COMMANDS: usize = 100_000;

/// How deep functions, files and menus may be nested.
const MAX_RUN_DEPTH: usize = 64;

/// A boot of GRUB in a simulation: it reads scripts as GRUB does, and ignores video, fonts, modules and devices. All
/// files are on one device.
pub struct SimulatedGrub<'f> {
    files: &'f dyn GrubFiles,
    prefix: String,
    variables: Variables,
    /// The environment block on the disk, as `save_env` left it.
    pub environment: Option<EnvironmentBlock>,
    functions: BTreeMap<String, Block>,
    menu: Vec<MenuEntry>,
    /// The words of each command `linux`.
    pub(super) kernels: Vec<Vec<String>>,
    initrds: Vec<String>,
    commands: usize,
    depth: usize,
}

impl fmt::Debug for SimulatedGrub<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SimulatedGrub");
        shown.field("menu", &self.menu).finish_non_exhaustive()
    }
}

impl<'f> SimulatedGrub<'f> {
    /// A boot with the directory of grub.cfg, such as `/boot/grub`.
    pub fn new(files: &'f dyn GrubFiles, prefix: &str) -> Self {
        let mut variables = Variables {
            status: true,
            ..Variables::default()
        };
        for name in [
            "feature_200_final",
            "feature_all_video_module",
            "feature_chainloader_bpb",
            "feature_default_font_path",
            "feature_menuentry_id",
            "feature_menuentry_options",
            "feature_nativedisk_cmd",
            "feature_ntldr",
            "feature_platform_search_hint",
            "feature_timeout_style",
        ] {
            variables.set(name, "y");
        }
        variables.set("prefix", prefix);
        variables.set("config_directory", prefix);
        variables.set("config_file", &format!("{prefix}/grub.cfg"));
        let environment = files.text(&format!("{prefix}/grubenv"));
        Self {
            files,
            prefix: prefix.to_owned(),
            variables,
            environment: environment.and_then(|text| EnvironmentBlock::parse(&text).ok()),
            functions: BTreeMap::new(),
            menu: Vec::new(),
            kernels: Vec::new(),
            initrds: Vec::new(),
            commands: 0,
            depth: 0,
        }
    }

    /// Reads grub.cfg and returns the entries of its menu.
    pub fn menu(&mut self) -> Result<&[MenuEntry], BootError> {
        self.menu.clear();
        self.source(&format!("{}/grub.cfg", self.prefix))?;
        Ok(&self.menu)
    }

    /// A variable, as reading grub.cfg left it.
    pub fn variable(&self, name: &str) -> &str {
        self.variables.get(name)
    }

    /// Reads grub.cfg and boots the default entry, as without a keystroke.
    pub fn boot(&mut self) -> Result<KernelBoot, BootError> {
        self.menu()?;
        let mut path = Vec::new();
        loop {
            let entry = self.default_entry().ok_or(BootError::NoEntry)?;
            if entry.is_restricted && self.variables.values.contains_key("superusers") {
                return Err(BootError::Password(entry.name().to_owned()));
            }
            path.push(entry.name().to_owned());
            self.variables.set("chosen", &path.join(">"));
            if !entry.is_submenu {
                return self.start(&entry, path);
            }
            if path.len() > MAX_RUN_DEPTH {
                return Err(BootError::Endless);
            }
            self.menu.clear();
            self.run_with(&entry.body.commands, entry.arguments.clone())?;
        }
    }

    /// Boots as [`Self::boot`] does. If the kernel of the entry is missing, GRUB tries the entries whose numbers are in
    /// the variable `fallback`, and without one waits in its menu for a keystroke. Fedora's GRUB always waits.
    pub fn boot_or_fall_back(&mut self) -> Result<KernelBoot, BootError> {
        let result = self.boot();
        let kernel = self.kernels.last().and_then(|words| words.first());
        let is_missing = match (&result, kernel) {
            (Err(BootError::Missing(file)), Some(kernel)) => file == kernel,
            (Err(BootError::NoKernel(_)), _) => true,
            _ => false,
        };
        if !is_missing {
            return result;
        }
        let numbers = self.variables.get("fallback").to_owned();
        let numbers = numbers
            .split_whitespace()
            .map_while(|word| word.parse().ok());
        let entries: Vec<MenuEntry> = numbers
            .filter_map(|at: usize| self.menu.get(at).cloned())
            .filter(|entry| !entry.is_submenu)
            .collect();
        let mut boots = entries
            .into_iter()
            .map(|entry| self.start(&entry, vec![entry.name().to_owned()]));
        boots.find(Result::is_ok).unwrap_or(result)
    }

    /// Reads grub.cfg, boots the default entry and returns the text between its braces.
    pub fn booted_source(&mut self) -> Result<Option<String>, BootError> {
        let boot = self.boot()?;
        let name = boot.entry.last();
        let entry = self
            .menu
            .iter()
            .find(|entry| Some(entry.name()) == name.map(String::as_str));
        Ok(entry.map(|entry| entry.source().to_owned()))
    }

    /// The entry that `default` names, else the first one. Leaves in `default` what follows for a submenu.
    fn default_entry(&mut self) -> Option<MenuEntry> {
        let default = self.variables.get("default").to_owned();
        let (first, rest) = default.split_once('>').unwrap_or((&default, ""));
        self.variables.set("default", rest);
        let by_number = first.parse::<usize>().ok();
        let by_number = by_number.and_then(|at| self.menu.get(at));
        let named = || {
            let mut all = self.menu.iter();
            all.find(|entry| entry.is_named(&default) || entry.is_named(first))
        };
        by_number
            .or_else(named)
            .or_else(|| self.menu.first())
            .cloned()
    }

    fn start(&mut self, entry: &MenuEntry, path: Vec<String>) -> Result<KernelBoot, BootError> {
        (self.kernels, self.initrds) = (Vec::new(), Vec::new());
        self.run_with(&entry.body.commands, entry.arguments.clone())?;
        let Some([kernel, arguments @ ..]) = self.kernels.last().map(Vec::as_slice) else {
            return Err(BootError::NoKernel(entry.name().to_owned()));
        };
        let command_line = arguments::loader_command_line(arguments);
        let tries_without_initrd = !self.variables.get("partuuid").is_empty()
            && self.functions.contains_key("initrdfail")
            && arguments.last().map(String::as_str) == Some(arguments::WITHOUT_INITRD);
        let kernel = kernel.clone();
        for file in std::iter::once(&kernel).chain(&self.initrds) {
            if !self.exists(file) {
                return Err(BootError::Missing(file.clone()));
            }
        }
        Ok(KernelBoot {
            entry: path,
            kernel,
            command_line,
            initrds: std::mem::take(&mut self.initrds),
            tries_without_initrd,
        })
    }

    fn source(&mut self, path: &str) -> Result<(), BootError> {
        let path = &on_disk(path);
        let text = self.files.text(path);
        let text = text.ok_or_else(|| BootError::Missing(path.to_owned()))?;
        let commands = script::parse(&text).map_err(|source| BootError::Script {
            path: path.to_owned(),
            source,
        })?;
        self.run(&commands)
    }

    fn run_with(&mut self, commands: &[Command], arguments: Vec<String>) -> Result<(), BootError> {
        let before = std::mem::replace(&mut self.variables.arguments, arguments);
        let result = self.run(commands);
        self.variables.arguments = before;
        result
    }

    fn run(&mut self, commands: &[Command]) -> Result<(), BootError> {
        self.depth += 1;
        if self.depth > MAX_RUN_DEPTH {
            return Err(BootError::Endless);
        }
        for command in commands {
            self.commands += 1;
            if self.commands > MAX_COMMANDS {
                return Err(BootError::Endless);
            }
            self.run_one(command)?;
        }
        self.depth -= 1;
        Ok(())
    }

    fn holds(&mut self, condition: &[Command]) -> Result<bool, BootError> {
        self.run(condition)?;
        Ok(self.variables.status)
    }

    fn run_one(&mut self, command: &Command) -> Result<(), BootError> {
        match command {
            Command::Simple { words, block } => {
                let words = self.variables.expand(words);
                let Some(name) = words.first().cloned() else {
                    return Ok(());
                };
                self.variables.status = self.simple(&name, &words, block.as_ref())?;
            }
            Command::If {
                branches,
                otherwise,
            } => {
                for (condition, body) in branches {
                    if self.holds(condition)? {
                        return self.run(body);
                    }
                }
                if otherwise.is_empty() {
                    self.variables.status = true;
                }
                return self.run(otherwise);
            }
            Command::Loop {
                condition,
                until,
                body,
            } => {
                while self.holds(condition)? != *until {
                    self.run(body)?;
                }
            }
            Command::For {
                variable,
                values,
                body,
            } => {
                for value in self.variables.expand(values) {
                    self.variables.set(variable, &value);
                    self.run(body)?;
                }
            }
            Command::Function { name, body } => {
                self.functions.insert(name.clone(), body.clone());
            }
        }
        Ok(())
    }

    /// Runs one command and returns whether it succeeded.
    fn simple(
        &mut self,
        name: &str,
        words: &[String],
        block: Option<&Block>,
    ) -> Result<bool, BootError> {
        if let Some(function) = self.functions.get(name).cloned() {
            self.run_with(&function.commands, words[1..].to_vec())?;
            return Ok(self.variables.status);
        }
        let arguments = &words[1..];
        match name {
            "menuentry" | "submenu" => {
                let body = block.cloned().unwrap_or_default();
                self.menu.extend(MenuEntry::of(words, body));
            }
            "set" => arguments.iter().for_each(|word| self.assign(word)),
            "unset" => arguments.iter().for_each(|name| {
                self.variables.values.remove(name);
            }),
            "load_env" => self.load_env(arguments),
            "save_env" => self.save_env(arguments),
            "source" | "." => match arguments {
                [path, ..] if self.files.size(&on_disk(path)).is_some() => self.source(path)?,
                _ => return Ok(false),
            },
            "[" => {
                let inner = arguments
                    .strip_suffix(&["]".to_owned()])
                    .unwrap_or(arguments);
                return Ok(self.test(inner));
            }
            "test" => return Ok(self.test(arguments)),
            // No key is pressed.
            "false" | "keystatus" => return Ok(false),
            "blscfg" if arguments.is_empty() => {
                let entries = bls::entries(&OnDisk(self.files), &self.variables)?;
                self.menu.extend(entries);
            }
            // They make entries that are not read here.
            "configfile" | "blscfg" => return Err(BootError::Unsupported(name.to_owned())),
            "linux" | "linux16" | "linuxefi" => {
                self.kernels.push(arguments.to_vec());
                return Ok(arguments.first().is_some_and(|file| self.exists(file)));
            }
            "initrd" | "initrd16" | "initrdefi" => {
                self.initrds = arguments.to_vec();
                return Ok(arguments.iter().all(|file| self.exists(file)));
            }
            "reboot" => {
                let kernel = self.kernels.last().and_then(|words| words.first());
                let mut files = kernel.into_iter().chain(&self.initrds);
                let missing = files.find(|file| !self.exists(file)).cloned();
                return Err(BootError::Restarts(missing.unwrap_or_default()));
            }
            assignment if assignment.contains('=') => self.assign(assignment),
            _ => {}
        }
        Ok(true)
    }

    fn exists(&self, file: &str) -> bool {
        self.files.size(&on_disk(file)).is_some()
    }

    fn assign(&mut self, word: &str) {
        if let Some((name, value)) = word.split_once('=') {
            self.variables.set(name, value);
        }
    }

    fn test(&self, arguments: &[String]) -> bool {
        let files = OnDisk(self.files);
        test_command::test(arguments, &files)
    }

    /// Loads the variables of the environment block, or the named ones.
    fn load_env(&mut self, arguments: &[String]) {
        let Some(environment) = &self.environment else {
            return;
        };
        let names = without_file(arguments);
        let named: Vec<&String> = names.collect();
        for (name, value) in environment.iter() {
            if named.is_empty() || named.iter().any(|one| *one == name) {
                self.variables.set(name, value);
            }
        }
    }

    /// Stores the named variables in the environment block. An empty value is stored, an unset variable removed.
    fn save_env(&mut self, names: &[String]) {
        let Some(environment) = &mut self.environment else {
            return;
        };
        for name in without_file(names) {
            match self.variables.values.get(name) {
                Some(value) => environment.set(name, value),
                None => environment.unset(name),
            }
        }
    }
}

/// The names of variables among the arguments of `load_env` and `save_env`. A file (`-f FILE`) is taken for the
/// environment block: bootupd names it by another path.
fn without_file(arguments: &[String]) -> impl Iterator<Item = &String> {
    let mut is_file = false;
    arguments.iter().filter(move |word| {
        let is_name = !is_file && !word.starts_with('-');
        is_file = ["-f", "--file"].contains(&word.as_str());
        is_name
    })
}
