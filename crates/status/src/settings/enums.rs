//! Defines settings whose value is one of a few words.

use super::extract::Scalar;
use crate::readiness::GateEffect;

macro_rules! words {
    ($($(#[$doc:meta])+ $name:ident { $($(#[$word_doc:meta])+ $variant:ident = $word:literal,)+
        $(@later $later:literal = $why:literal,)?
    })+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
        #[value(rename_all = "lower")]
        pub enum $name { $($(#[$word_doc])+ $variant,)+ }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The value as written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl Scalar for $name {
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
    /// Which component drains the node.
    DrainBy {
        /// OpenShift's controllers if they run, otherwise the agent.
        Auto = "auto",
        /// The agent evicts the pods.
        Agent = "agent",
        /// The machine-config-controller, which is requested by an annotation.
        Controller = "controller",
    }
    /// What happens to pods that lose data by eviction.
    DataLossPolicy {
        /// They are evicted, and an event reports it.
        Evict = "evict",
        /// They block the drain.
        Block = "block",
    }
    /// When machinist may reboot the machine by itself.
    Reboot {
        /// As soon as an update needs it.
        Auto = "auto",
        /// After the user's confirmation.
        Ask = "ask",
        /// Never; an update that needs a reboot stays pending until the machine is rebooted by
        /// other means.
        Never = "never",
    }
    /// A task of the agent. Without `config` it can run alongside another config daemon.
    AgentRole {
        /// Apply machine configs.
        Config = "config",
        /// Advertise devices to the kubelet.
        Devices = "devices",
        /// Evaluate and report readiness.
        Readiness = "readiness",
    }
    /// How a container gets a device of a CDI spec that it requested by number.
    CdiAnswer {
        /// The response contains the device's CDI name, and the runtime applies the spec.
        Names = "names",
        /// The response contains the edits of the spec, for runtimes and kubelets that do not
        /// support CDI names.
        Edits = "edits",
    }
    /// Whether a soft reboot replaces a reboot if that is sufficient.
    SoftReboot {
        /// Every reboot is a full reboot.
        Never = "never",
        /// A soft reboot is enough if no disruption policy demands a reboot and only userspace reads the changed files.
        Auto = "auto",
    }
    /// How resources are registered with the kubelet.
    Registration {
        /// The agent registers on the kubelet's socket, and again whenever that socket is
        /// recreated.
        Kubelet = "kubelet",
        /// The kubelet's plugin watcher finds sockets in its directory.
        Watcher = "watcher",
    }
    /// How the owners of created files are handled.
    Owners {
        /// Set owners if the process may; otherwise record them below an offline root.
        Auto = "auto",
        /// Set owners; fail if that is not permitted.
        Set = "set",
        /// Only record owners. Refused on a live root.
        Record = "record",
    }
    /// How drift of a path from the config is handled.
    DriftPolicy {
        /// It is reported.
        Report = "report",
        /// It is repaired, with a limited rate so that two conflicting writers do not alternate
        /// endlessly.
        Repair = "repair",
        /// It is not reported.
        Ignore = "ignore",
    }
    /// The destination and format of log lines.
    LogFormat {
        /// The journal if stderr is connected to it, otherwise text.
        Auto = "auto",
        /// Text lines on stderr.
        Text = "text",
        /// One JSON object per line, on stderr.
        Json = "json",
        /// The journal, through its native protocol.
        Journald = "journald",
    }
    /// The lowest level that is logged. `MACHINIST_LOG` can set more, per module.
    LogLevel {
        /// Only failures.
        Error = "error",
        /// Also warnings.
        Warn = "warn",
        /// Also decisions.
        Info = "info",
        /// Also the details behind decisions.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

impl Scalar for GateEffect {
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
