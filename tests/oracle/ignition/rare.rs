//! Parts of configs that machinist refuses or only compares. Few configs have one, so that the rest
//! of the others is compared.

use serde_json::{Map, Value, json};

use crate::support::Dice;

/// Paths that a config cannot manage.
const FORBIDDEN_PATHS: [&str; 8] = [
    "/proc/a",
    "/sys/a",
    "/dev/a",
    "/run/a",
    "/var/run/a",
    "/var/lib/machinist/a",
    "/etc/.machinist/a",
    "/",
];

/// Adds one of them to the config of a version.
pub(super) fn add(root: &mut Value, version: &str, dice: &mut Dice) {
    let mut parts = RareParts {
        root,
        is_two: version.starts_with("2."),
        dice,
    };
    match parts.dice.below(14) {
        0 => parts.disk(),
        1 => parts.file_system(),
        2 => parts.raid(),
        3 => parts.luks(),
        4 => parts.other_config(),
        5 => parts.fetch_options(),
        6 => parts.kernel_arguments(),
        7 => parts.forbidden_path(),
        8 => parts.foreign_user(),
        9 => parts.reserved_number(),
        10 => parts.fields_of_core(),
        11 => parts.headers(),
        12 => parts.unknown_key(),
        _ => parts.odd_owner(),
    }
}

struct RareParts<'r> {
    root: &'r mut Value,
    is_two: bool,
    dice: &'r mut Dice,
}

impl RareParts<'_> {
    /// Adds an entry to a list.
    fn push(&mut self, section: &str, list: &str, entry: Value) {
        let entries = &mut self.root[section][list];
        match entries.as_array_mut() {
            Some(entries) => entries.push(entry),
            None => *entries = json!([entry]),
        }
    }

    /// A device, which in a few cases is not an absolute path.
    fn device(&mut self) -> &'static str {
        match self.dice.one_in(4) {
            true => "sda",
            false => self.dice.pick::<&str>(&["/dev/sda", "/dev/disk/by-id/b"]),
        }
    }

    fn disk(&mut self) {
        let device = self.device();
        let size = if self.is_two { "size" } else { "sizeMiB" };
        let partition = json!({"number": 1, "label": "a", size: 100});
        let disk = json!({"device": device, "wipeTable": true, "partitions": [partition]});
        self.push("storage", "disks", disk);
    }

    fn file_system(&mut self) {
        let device = self.device();
        let entry = match self.is_two {
            true => json!({"name": "a", "mount": {"device": device, "format": "ext4"}}),
            false => json!({"device": device, "format": "ext4", "path": "/var/a"}),
        };
        self.push("storage", "filesystems", entry);
    }

    fn raid(&mut self) {
        let devices = ["/dev/sda", self.device()];
        let level = *self.dice.pick(&["raid1", "raid0", "raid1", "raid99"]);
        let entry = json!({"name": "md0", "level": level, "devices": devices});
        self.push("storage", "raid", entry);
    }

    fn luks(&mut self) {
        let entry = json!({"name": "a", "device": self.device(), "clevis": {"tpm2": true}});
        self.push("storage", "luks", entry);
    }

    fn other_config(&mut self) {
        let source = *self
            .dice
            .pick(&["data:,%7B%7D", "https://example.com/a.ign"]);
        let reference = json!({ "source": source });
        let key = *self.dice.pick(&["merge", "append", "replace"]);
        self.root["ignition"]["config"][key] = match key {
            "replace" => reference,
            _ => json!([reference]),
        };
    }

    fn fetch_options(&mut self) {
        let (key, value) = match self.dice.below(3) {
            0 => ("proxy", json!({"httpsProxy": "https://example.com"})),
            1 => ("timeouts", json!({"httpTotal": 30})),
            _ => {
                let authority = json!({"source": "data:,x"});
                let tls = json!({"certificateAuthorities": [authority]});
                ("security", json!({ "tls": tls }))
            }
        };
        self.root["ignition"][key] = value;
    }

    fn kernel_arguments(&mut self) {
        let key = *self.dice.pick(&["shouldExist", "shouldNotExist"]);
        self.root["kernelArguments"][key] = json!(["nosmt"]);
    }

    fn forbidden_path(&mut self) {
        let path = *self.dice.pick(&FORBIDDEN_PATHS);
        let mut entry = json!({"path": path});
        if self.is_two {
            entry["filesystem"] = json!("root");
            entry["mode"] = json!(493);
        }
        self.push("storage", "directories", entry);
    }

    fn foreign_user(&mut self) {
        let list = *self.dice.pick(&["users", "groups"]);
        self.push("passwd", list, json!({"name": "eve"}));
    }

    fn reserved_number(&mut self) {
        let number = *self.dice.pick(&[0, 65535, 4_294_967_295_u32]);
        let (list, key) = *self.dice.pick(&[("users", "uid"), ("groups", "gid")]);
        self.push("passwd", list, json!({"name": "zoe", key: number}));
    }

    fn fields_of_core(&mut self) {
        let mut user = Map::new();
        user.insert("name".into(), json!("core"));
        for (key, value) in [
            ("sshAuthorizedKeys", json!(["ssh-ed25519 CCCC c"])),
            ("passwordHash", json!("$6$a$b")),
            ("shell", json!("/bin/sh")),
            ("noLogInit", json!(true)),
        ] {
            if self.dice.one_in(3) {
                user.insert(key.into(), value);
            }
        }
        self.push("passwd", "users", user.into());
    }

    fn headers(&mut self) {
        let source = *self.dice.pick(&["data:,x", "https://example.com/a"]);
        let header = json!({"name": "a", "value": "b"});
        let contents = json!({"source": source, "httpHeaders": [header]});
        let mut file = json!({"path": "/etc/headers", "contents": contents});
        if self.is_two {
            file["filesystem"] = json!("root");
            file["mode"] = json!(420);
        }
        self.push("storage", "files", file);
    }

    fn unknown_key(&mut self) {
        let key = *self.dice.pick(&["mood", "Target", "owner"]);
        let mut link = json!({"path": "/etc/key", "target": "b"});
        if self.is_two {
            link["filesystem"] = json!("root");
        }
        link[key] = json!("x");
        self.push("storage", "links", link);
    }

    fn odd_owner(&mut self) {
        let owner = match self.dice.below(4) {
            0 => json!({"id": -1}),
            1 => json!({"id": 4_294_967_296_u64}),
            2 => json!({"name": "a:b"}),
            _ => json!({"name": "a/b"}),
        };
        let mut entry = json!({"path": "/etc/owned", "user": owner});
        if self.is_two {
            entry["filesystem"] = json!("root");
            entry["mode"] = json!(493);
        }
        self.push("storage", "directories", entry);
    }
}
