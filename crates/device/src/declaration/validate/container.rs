//! Validates the device spec: nodes, mounts, environment variables and annotations.

use std::collections::BTreeMap;

use super::{DeclarationValidator, schema};
use crate::{
    SmallMap,
    inventory::{DeviceNodeSpec, DeviceSpec, MountSpec},
    mount_allowlist::{self, MAX_ENTRIES, MAX_VALUE_BYTES},
    resource_name::ResourceName,
    template::Template,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

impl DeclarationValidator<'_> {
    pub(super) fn container(
        &mut self,
        given: schema::ContainerDoc,
        resource: Option<&ResourceName>,
    ) -> DeviceSpec {
        let nodes = given.nodes.unwrap_or_else(|| {
            vec![schema::NodeDoc {
                path: "{node}".to_owned(),
                inside: None,
                permissions: schema::NodeDoc::default_permissions(),
            }]
        });
        self.count("spec.container.nodes", nodes.len());
        self.count("spec.container.mounts", given.mounts.len());
        let nodes = nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| self.node(at, node))
            .collect();
        let mounts = given.mounts.iter().enumerate();
        DeviceSpec {
            nodes,
            mounts: mounts
                .filter_map(|(at, mount)| self.mount(at, mount, resource))
                .collect(),
            cdi: Vec::new(),
            env: self.env(given.env),
            annotations: self.annotations(given.annotations),
        }
    }

    fn count(&mut self, field: &str, count: usize) {
        if count > MAX_ENTRIES {
            self.value(field, format!("{count} entries"), "at most 64 entries");
        }
    }

    fn node(&mut self, at: usize, node: &schema::NodeDoc) -> Option<DeviceNodeSpec> {
        let field = format!("spec.container.nodes[{at}]");
        let path = self.path_template(&format!("{field}.path"), &node.path, true);
        let inside = node.inside.as_ref();
        let inside = inside.map(|to| self.path_template(&format!("{field}.as"), to, false));
        let given = &node.permissions;
        if !mount_allowlist::are_permissions(given) {
            let message = format!("{given:?} are not valid permissions");
            self.value(
                &format!("{field}.permissions"),
                message,
                "any of r, w and m, each once",
            );
        }
        Some(DeviceNodeSpec {
            path: path?,
            inside: match inside {
                Some(inside) => Some(inside?),
                None => None,
            },
            permissions: given.clone(),
        })
    }

    /// Checks a template that must give an absolute path for any device; on the host it must be below
    /// `/dev`.
    fn path_template(&mut self, field: &str, given: &str, on_host: bool) -> Option<Template> {
        let template = self.template(field, given)?;
        let example = template.fill("x", "/dev/x");
        let fault = match AbsPath::new(example) {
            Err(error) => Some(error.to_string()),
            Ok(path) if on_host && !path.as_str().starts_with("/dev/") => {
                Some(format!("{given:?} is not below /dev"))
            }
            Ok(path) if path == AbsPath::root() => Some(format!("{given:?} is the root")),
            Ok(_) => None,
        };
        match fault {
            None => Some(template),
            Some(message) => {
                let expected = if on_host {
                    "{node} or a path below /dev"
                } else {
                    "an absolute path"
                };
                self.refuse(Reason::PathInvalid, field, message, expected);
                None
            }
        }
    }

    fn template(&mut self, field: &str, given: &str) -> Option<Template> {
        if given.len() > MAX_VALUE_BYTES || given.contains('\0') {
            self.value(
                field,
                "the value is too long or holds a NUL byte",
                "at most 4096 bytes",
            );
            return None;
        }
        Template::new(given)
            .map_err(|error| self.value(field, error.to_string(), "{id}, {node} or {name}"))
            .ok()
    }

    fn mount(
        &mut self,
        at: usize,
        mount: &schema::MountDoc,
        resource: Option<&ResourceName>,
    ) -> Option<MountSpec> {
        let field = format!("spec.container.mounts[{at}]");
        let from = self.absolute(&format!("{field}.from"), &mount.from);
        let to = self.absolute(&format!("{field}.to"), &mount.to);
        let (from, to) = (from?, to?);
        if let Some(resource) = resource
            && !mount_allowlist::may_mount(&from, resource.domain(), &self.allowances.mounts)
        {
            let expected = mount_allowlist::mountable(resource.domain());
            let message = format!("{from} must not be mounted into containers");
            self.refuse(
                Reason::PathInvalid,
                &format!("{field}.from"),
                message,
                &expected,
            );
            return None;
        }
        if to == AbsPath::root() {
            self.refuse(
                Reason::PathInvalid,
                &format!("{field}.to"),
                "/ cannot be a mount target",
                "",
            );
            return None;
        }
        let read_only = mount.read_only;
        Some(MountSpec {
            from,
            to,
            read_only,
        })
    }

    fn absolute(&mut self, field: &str, given: &str) -> Option<AbsPath> {
        AbsPath::new(given)
            .map_err(|error| {
                self.refuse(
                    Reason::PathInvalid,
                    field,
                    error.to_string(),
                    "an absolute path",
                );
            })
            .ok()
    }

    fn env(&mut self, given: BTreeMap<String, String>) -> SmallMap<Template> {
        self.texts("spec.container.env", given, mount_allowlist::is_variable)
    }

    fn annotations(&mut self, given: BTreeMap<String, String>) -> SmallMap<Template> {
        self.texts(
            "spec.container.annotations",
            given,
            mount_allowlist::is_annotation,
        )
    }

    fn texts(
        &mut self,
        field: &str,
        given: BTreeMap<String, String>,
        allowed: impl Fn(&str) -> bool,
    ) -> SmallMap<Template> {
        self.count(field, given.len());
        let mut texts = SmallMap::default();
        for (key, value) in given {
            let at = format!("{field}.{key}");
            if !allowed(&key) {
                self.value(&at, format!("{key:?} cannot be set by a declaration"), "");
            } else if let Some(template) = self.template(&at, &value) {
                texts.insert(key, template);
            }
        }
        texts
    }
}
