//! Validates a parsed declaration: all rules that its schema cannot express.

mod capacity;
mod container;
mod health;
mod quiesce;
mod selectors;
mod taint;

use super::{
    Allowances, CdiDelivery, Declaration, KIND, NumaAffinity,
    schema::{self, DeclarationDoc},
};
use crate::{
    Refusal,
    inventory::{DeviceSpec, ServeMode, Share},
    mount_allowlist::MAX_NUMA_NODE_ID,
    resource_name::ResourceName,
    yaml::Refusals,
};
use machinist_base::reason::Reason;

/// The maximum number of shares. Light devices such as /dev/fuse need shares: a thousand means "as
/// many as pods fit".
const MAX_SHARES: u32 = 1024;

/// Collects refusals, so that the author sees all of them at once.
struct DeclarationValidator<'a> {
    allowances: &'a Allowances,
    refusals: Refusals,
}

pub(super) fn check(
    file: DeclarationDoc,
    allowances: &Allowances,
) -> Result<Declaration, Vec<Refusal>> {
    let mut check = DeclarationValidator {
        allowances,
        refusals: Refusals::default(),
    };
    let name = check.head(&file);
    let spec = file.spec;
    let resource = check.resource(&spec.resource);
    let matches = check.matches(spec.matches);
    let group = check.group(spec.group);
    let share = check.share(spec.share);
    let recipe = check.container(spec.container, resource.as_ref());
    check.by_claim(spec.serve, share, &recipe);
    let capacity = check.capacity(spec.serve, spec.capacity);
    let numa = check.numa(spec.numa);
    let probes = check.health(spec.health);
    let taint = check.taint(spec.taint);
    let stop_units = check.quiesce(spec.quiesce);
    match resource {
        Some(resource) if check.refusals.0.is_empty() => Ok(Declaration {
            name,
            resource,
            serve: spec.serve,
            matches,
            group,
            share,
            recipe,
            cdi: match spec.serve {
                ServeMode::DevicePlugin => check.allowances.cdi,
                // A claim can only pass CDI names to the runtime.
                ServeMode::Dra => CdiDelivery::Names,
            },
            capacity,
            numa,
            probes,
            stop_units,
            taint,
        }),
        _ => Err(check.refusals.0),
    }
}

impl DeclarationValidator<'_> {
    fn refuse(&mut self, reason: Reason, field: &str, message: impl Into<String>, expected: &str) {
        self.refusals.refuse(reason, field, message, expected);
    }

    fn value(&mut self, field: &str, message: impl Into<String>, expected: &str) {
        self.refuse(Reason::ValueInvalid, field, message, expected);
    }

    fn head(&mut self, file: &DeclarationDoc) -> String {
        self.refusals.head((&file.api_version, &file.kind), KIND);
        let name = &file.metadata.name;
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(plain) {
            let expected = "1 to 253 lower-case letters, digits, - and .";
            self.value(
                "metadata.name",
                format!("{name:?} is not a valid name"),
                expected,
            );
        }
        name.clone()
    }

    fn resource(&mut self, given: &str) -> Option<ResourceName> {
        ResourceName::new(given)
            .map_err(|error| {
                self.value("spec.resource", error.to_string(), "vendor domain/name");
            })
            .ok()
    }

    fn share(&mut self, given: Option<schema::ShareDoc>) -> Share {
        let Some(given) = given else {
            return Share::EXCLUSIVE;
        };
        if !(1..=MAX_SHARES).contains(&given.replicas) {
            let message = format!("{} shares", given.replicas);
            self.value("spec.share.replicas", message, "1 to 1024");
        }
        Share {
            replicas: given.replicas,
            policy: given.policy,
            strict: given.strict,
        }
    }

    /// Refuses settings that have no effect with DRA, so that users do not first notice in a pod.
    fn by_claim(&mut self, serve: ServeMode, share: Share, recipe: &DeviceSpec) {
        if serve != ServeMode::Dra {
            return;
        }
        if share.strict {
            self.refuse(
                Reason::FeatureUnsupported,
                "spec.share.strict",
                "with serve: dra the scheduler chooses the shares",
                "no strict, or serve: devicePlugin",
            );
        }
        if !recipe.annotations.is_empty() {
            self.refuse(
                Reason::FeatureUnsupported,
                "spec.container.annotations",
                "with serve: dra a container is set up by a CDI spec, which cannot contain annotations",
                "no annotations, or serve: devicePlugin",
            );
        }
    }

    fn numa(&mut self, given: Option<schema::NumaDoc>) -> NumaAffinity {
        let expected = "auto, none or a list of NUMA nodes such as [0]";
        match given {
            None => NumaAffinity::Auto,
            Some(schema::NumaDoc::Word(word)) => match word.as_str() {
                "auto" => NumaAffinity::Auto,
                "none" => NumaAffinity::None,
                _ => {
                    self.value("spec.numa", format!("{word:?} is not known"), expected);
                    NumaAffinity::None
                }
            },
            Some(schema::NumaDoc::Nodes(mut nodes)) => {
                if nodes.is_empty() || nodes.iter().any(|node| *node > MAX_NUMA_NODE_ID) {
                    self.value(
                        "spec.numa",
                        format!("{nodes:?} are not valid NUMA nodes"),
                        expected,
                    );
                }
                nodes.sort_unstable();
                nodes.dedup();
                NumaAffinity::Fixed(nodes)
            }
        }
    }
}
