//! Settings whose value is one word of a few.

use super::reader::Word;
use crate::readiness::Effect;

macro_rules! words {
    ($($(#[$doc:meta])+ $name:ident { $($(#[$word_doc:meta])+ $variant:ident = $word:literal,)+
        $(@later $later:literal = $why:literal,)?
    })+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
        #[value(rename_all = "lower")]
        pub enum $name { $($(#[$word_doc])+ $variant,)+ }

        impl $name {
            /// Every value there is.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The value as it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl Word for $name {
            fn expected() -> String {
                one_of(&[$($word,)+])
            }
            fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text)
            }
            fn show(&self) -> String {
                self.as_str().to_owned()
            }
            $(fn later(text: &str) -> Option<&'static str> {
                (text == $later).then_some($why)
            })?
        }
    )+};
}

words! {
    /// Who takes the pods off the node.
    DrainBy {
        /// OpenShift's controllers where they run, else the agent.
        Auto = "auto",
        /// The agent evicts them.
        Agent = "agent",
        /// The machine-config-controller, which is asked by an annotation.
        Controller = "controller",
    }
    /// What becomes of pods that lose something by being evicted.
    Losing {
        /// They are evicted, and an event says so.
        Evict = "evict",
        /// The drain stops before them.
        Block = "block",
    }
    /// When machinist may reboot the machine by itself.
    Reboot {
        /// As soon as an update needs it.
        Auto = "auto",
        /// When a person says so.
        Ask = "ask",
        /// Never; an update that needs a reboot stays pending until somebody reboots.
        Never = "never",
    }
    /// What the agent does here. Beside another config daemon, `config` is left out.
    Job {
        /// Apply machine configs.
        Config = "config",
        /// Lend devices to the kubelet.
        Devices = "devices",
        /// Judge and report readiness.
        Readiness = "readiness",
    }
    /// How a container comes by a device of a CDI spec that it asked for by number.
    CdiAnswer {
        /// The runtime is told the device's name and applies the spec.
        Names = "names",
        /// The kubelet is told what the spec says, for runtimes and kubelets that know no names.
        Edits = "edits",
    }
    /// Whether userspace alone is restarted where that is enough.
    SoftReboot {
        /// Every reboot is one of the machine.
        Never = "never",
        /// Where no rule asks for a reboot and only userspace reads what changed.
        Auto = "auto",
    }
    /// How the kubelet learns of resources.
    Registration {
        /// The agent tells it on its own socket, and again whenever that is a new one.
        Kubelet = "kubelet",
        /// Its plugin watcher finds sockets in its directory.
        Watcher = "watcher",
    }
    /// Whose files the agent makes.
    Owners {
        /// Set owners where the process may, record them below an offline root where it may not.
        Auto = "auto",
        /// Set owners; refuse to work where that is not allowed.
        Set = "set",
        /// Only record owners. Refused on a live root.
        Record = "record",
    }
    /// What happens to a path that is no longer what the config says.
    DriftPolicy {
        /// It is shown.
        Report = "report",
        /// It is put back, rarely enough that two who disagree do not fight without end.
        Repair = "repair",
        /// It is not even shown.
        Ignore = "ignore",
    }
    /// Where log lines go and what they look like.
    LogFormat {
        /// The journal when stderr leads there, else text.
        Auto = "auto",
        /// Lines for people, on stderr.
        Text = "text",
        /// One JSON object a line, on stderr.
        Json = "json",
        /// The journal, by its own protocol.
        Journald = "journald",
    }
    /// The least important log line that is written. `MACHINIST_LOG` can say more, per module.
    LogLevel {
        /// Only what failed.
        Error = "error",
        /// Also what looks wrong.
        Warn = "warn",
        /// Also each decision.
        Info = "info",
        /// Also what led to it.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

impl Word for Effect {
    fn expected() -> String {
        one_of(&["hold", "warn", "off"])
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "hold" => Some(Self::Hold),
            "warn" => Some(Self::Warn),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    fn show(&self) -> String {
        let word = match self {
            Self::Hold => "hold",
            Self::Warn => "warn",
            Self::Off => "off",
        };
        word.to_owned()
    }
}

fn one_of(words: &[&str]) -> String {
    format!("one of {}", words.join(", "))
}
