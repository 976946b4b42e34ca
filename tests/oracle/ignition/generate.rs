//! Random configs over every field and version, with odd values in some of them.

use serde_json::{Map, Value, json};

use super::{go_program::Case, machinist_result::NAMES, rare};
use crate::support::Dice;

const VERSIONS: [&str; 10] = [
    "2.0.0", "2.1.0", "2.2.0", "3.0.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0",
];

const PATHS: [&str; 9] = [
    "/etc/a",
    "/etc/b",
    "/etc/d",
    "/etc/d/x",
    "/opt/t",
    "/srv/with space",
    "/etc//a",
    "etc/a",
    "/etc/a/../b",
];

const TEXTS: [&str; 9] = [
    "[Service]\nExecStart=/bin/a\n",
    "[Service]\nExecStart=/bin/a\n[Install]\nWantedBy=multi-user.target\n",
    "[Unit]\nDescription=x\n",
    "[Service]\r\nExecStart=/bin/a\r\n",
    "",
    "[Service\nExecStart=/bin/a\n",
    "[Service]\nExecStart\n",
    "ExecStart=/bin/a\n",
    "# a comment\n[Service]\nExecStart=/bin/a \\\n  b\n",
];

const SOURCES: [&str; 12] = [
    "data:,",
    "data:,text",
    "data:,a%20b%0A",
    "data:;base64,aGVsbG8=",
    "data:text/plain;charset=utf-8;base64,aGVsbG8=",
    "",
    "data:text",
    "data:;base64,a",
    "data:,%zz",
    "http://example.com/a",
    "ftp://example.com/a",
    "text",
];

/// One to three documents for one machine.
pub(super) fn case(dice: &mut Dice) -> Case {
    let count = 1 + dice.below(3);
    let texts = (0..count).map(|number| {
        let mut generator = Generator {
            first: number == 0,
            version: dice.pick::<&str>(&VERSIONS),
            dice,
        };
        (format!("{number}.ign"), generator.config().to_string())
    });
    Case::new(texts)
}

struct Generator<'d> {
    first: bool,
    version: &'static str,
    dice: &'d mut Dice,
}

impl Generator<'_> {
    fn is_two(&self) -> bool {
        self.version.starts_with("2.")
    }

    fn config(&mut self) -> Value {
        let mut root = json!({"ignition": {"version": self.version}});
        let mut storage = Map::new();
        for (key, make) in [
            ("files", Self::file as fn(&mut Self) -> Value),
            ("directories", Self::directory),
            ("links", Self::link),
        ] {
            if !self.dice.one_in(3) {
                let mut entries = self.some(make);
                if self.is_two()
                    && key == "files"
                    && let Some(entries) = entries.as_array_mut()
                {
                    // A file twice is a listed difference.
                    entries.truncate(1);
                }
                storage.insert(key.into(), entries);
            }
        }
        let units = self.some(Self::unit);
        let (mut users, groups) = (self.some(Self::user), self.some(Self::group));
        if self.is_two()
            && let Some(users) = users.as_array_mut()
        {
            // Two entries for one user are a listed difference.
            users.truncate(1);
        }
        let fields = root.as_object_mut().unwrap();
        fields.insert("storage".into(), storage.into());
        if self.dice.one_in(2) {
            fields.insert("systemd".into(), json!({ "units": units }));
        }
        if self.dice.one_in(2) {
            fields.insert("passwd".into(), json!({"users": users, "groups": groups}));
        }
        if self.dice.one_in(12) {
            let key = *self
                .dice
                .pick(&["networkd", "kernelArguments", "passwd", "storage"]);
            fields.insert(key.into(), json!({}));
        }
        if self.dice.one_in(10) {
            rare::add(&mut root, self.version, self.dice);
        }
        root
    }

    fn some(&mut self, make: fn(&mut Self) -> Value) -> Value {
        let count = self.dice.below(3);
        (0..count).map(|_| make(self)).collect()
    }

    /// Adds a field in half of the cases; in a few it is null or has a value of another type.
    fn may(&mut self, fields: &mut Map<String, Value>, key: &str, value: Value) {
        if self.dice.one_in(2) {
            let value = match self.dice.below(60) {
                0 => Value::Null,
                1 => json!(7),
                2 => json!("text"),
                3 => json!([]),
                _ => value,
            };
            fields.insert(key.into(), value);
        }
    }

    fn node(&mut self) -> Map<String, Value> {
        let path = match self.dice.one_in(20) {
            true => *self.dice.pick(&PATHS),
            false => *self.dice.pick(&PATHS[..6]),
        };
        let mut fields = Map::new();
        fields.insert("path".into(), json!(path));
        if self.is_two() != self.dice.one_in(25) {
            fields.insert("filesystem".into(), json!("root"));
        }
        for key in ["user", "group"] {
            let owner = match self.dice.below(6) {
                0 => json!({"id": 7}),
                // After an owner by id of another config it is a listed difference.
                1 if self.first => json!({"name": "bob"}),
                2 => json!({"id": 0, "name": ""}),
                3 => json!({"id": 7, "name": "bob"}),
                4 => json!({}),
                _ => json!({"id": 0}),
            };
            // In Ignition 2.0 an absent owner is root, also over the owner of an earlier config.
            if self.version == "2.0.0" {
                fields.insert(key.into(), json!({"id": 0}));
            } else if self.dice.one_in(4) {
                self.may(&mut fields, key, owner);
            }
        }
        if self.dice.one_in(3) {
            let overwrite = json!(self.dice.one_in(2));
            self.may(&mut fields, "overwrite", overwrite);
        }
        fields
    }

    /// Before Ignition 2.2 the absent mode is a listed difference.
    fn may_have_mode(&mut self, fields: &mut Map<String, Value>, mode: Value) {
        match self.is_two() {
            true => drop(fields.insert("mode".into(), mode)),
            false => self.may(fields, "mode", mode),
        }
    }

    fn mode(&mut self) -> Value {
        let modes = [420, 493, 384, 0, 511, 2541, 1023, 4095, 4096, -1, 644, 755];
        match self.dice.one_in(12) {
            true => json!(self.dice.pick(&modes)),
            false => json!(self.dice.pick(&modes[..7])),
        }
    }

    fn resource(&mut self) -> Value {
        let source = match self.dice.one_in(12) {
            true => *self.dice.pick(&SOURCES),
            false => *self.dice.pick(&SOURCES[..6]),
        };
        let mut fields = Map::new();
        if !self.dice.one_in(6) {
            fields.insert("source".into(), json!(source));
        }
        if fields.contains_key("source") && self.dice.one_in(10) {
            let compression = *self.dice.pick(&["", "gzip", "xz"]);
            fields.insert("compression".into(), json!(compression));
        }
        if self.dice.one_in(10) {
            let empty = "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
            let mut hash = *self.dice.pick(&[empty, "sha256-00", "md5-00", "", "x"]);
            // The same listed difference as in Ignition 3, with a message that other mistakes
            // share.
            if self.is_two() && hash.is_empty() {
                hash = "x";
            }
            fields.insert("verification".into(), json!({ "hash": hash }));
        }
        fields.into()
    }

    fn file(&mut self) -> Value {
        let mut fields = self.node();
        let (mode, contents) = (self.mode(), self.resource());
        self.may_have_mode(&mut fields, mode);
        if !self.dice.one_in(4) {
            fields.insert("contents".into(), contents);
        }
        if self.dice.one_in(8) {
            let append = match self.is_two() != self.dice.one_in(20) {
                true => json!(true),
                false => json!([self.resource()]),
            };
            fields.insert("append".into(), append);
        }
        fields.into()
    }

    fn directory(&mut self) -> Value {
        let mut fields = self.node();
        let mode = self.mode();
        self.may_have_mode(&mut fields, mode);
        fields.into()
    }

    fn link(&mut self) -> Value {
        let mut fields = self.node();
        if !self.dice.one_in(15) {
            let target = *self.dice.pick(&["/etc/b", "b", "../x", "/dev/null"]);
            fields.insert("target".into(), json!(target));
        }
        if self.dice.one_in(4) {
            let hard = json!(self.dice.one_in(2));
            self.may(&mut fields, "hard", hard);
        }
        fields.into()
    }

    fn text(&mut self) -> Value {
        match self.dice.one_in(10) {
            true => json!(self.dice.pick(&TEXTS)),
            false => json!(self.dice.pick(&TEXTS[..2])),
        }
    }

    fn unit(&mut self) -> Value {
        let names = [
            "a.service",
            "b.service",
            "t@.service",
            "t@x.service",
            "c.timer",
            "a",
            "a.conf",
            "a b.service",
        ];
        let name = match self.dice.one_in(15) {
            true => *self.dice.pick(&names),
            false => *self.dice.pick(&names[..5]),
        };
        let mut fields = Map::new();
        fields.insert("name".into(), json!(name));
        let contents = self.text();
        self.may(&mut fields, "contents", contents);
        for key in ["enabled", "mask"] {
            let flag = json!(self.dice.one_in(2));
            self.may(&mut fields, key, flag);
        }
        if self.is_two() && self.dice.one_in(3) {
            fields.insert("enable".into(), json!(self.dice.one_in(2)));
        }
        let mut dropins = self.some(|generator| {
            let name = *generator
                .dice
                .pick(&["20-b.conf", "30-c.conf", "40-d.conf", "a.txt"]);
            json!({"name": name, "contents": generator.text()})
        });
        if self.is_two()
            && let Some(dropins) = dropins.as_array_mut()
        {
            // A drop-in twice is a listed difference.
            dropins.truncate(1);
        }
        if self.dice.one_in(3) {
            fields.insert("dropins".into(), dropins);
        }
        fields.into()
    }

    fn user(&mut self) -> Value {
        let mut fields = Map::new();
        let hash = *self.dice.pick(&["$6$a$b", "$6$a$b", ""]);
        fields.insert("name".into(), json!(self.dice.pick(&NAMES[1..5])));
        let keys = json!(["ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"]);
        self.may(&mut fields, "sshAuthorizedKeys", keys);
        for (key, value) in [
            ("uid", json!(1234)),
            ("gecos", json!("A Name")),
            ("homeDir", json!("/home/x")),
            ("noCreateHome", json!(true)),
            ("noUserGroup", json!(false)),
            ("passwordHash", json!(hash)),
            ("primaryGroup", json!("ops")),
            ("groups", json!(["ops", "web"])),
            ("shell", json!("/bin/sh")),
            ("shouldExist", json!(true)),
            ("system", json!(true)),
        ] {
            if self.dice.one_in(4) {
                self.may(&mut fields, key, value);
            }
        }
        fields.into()
    }

    fn group(&mut self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".into(), json!(self.dice.pick(&NAMES[1..5])));
        for (key, value) in [
            ("gid", json!(1234)),
            ("passwordHash", json!("$6$a$b")),
            ("shouldExist", json!(true)),
            ("system", json!(false)),
        ] {
            if self.dice.one_in(3) {
                self.may(&mut fields, key, value);
            }
        }
        fields.into()
    }
}
