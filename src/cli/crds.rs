//! Implements `machinist crds`.

use clap::Args;

use super::{Exit, output::print_raw};

/// The definitions as shipped; the kustomization next to them lists the same files.
const CRDS: &[&str] = &[
    include_str!("../../packaging/kubernetes/crds/machineconfigs.yaml"),
    include_str!("../../packaging/kubernetes/crds/machineconfigpools.yaml"),
    include_str!("../../packaging/kubernetes/crds/machineconfignodes.yaml"),
    include_str!("../../packaging/kubernetes/crds/machineconfigurations.yaml"),
    include_str!("../../packaging/kubernetes/crds/pinnedimagesets.yaml"),
    include_str!("../../packaging/kubernetes/crds/kubeletconfigs.yaml"),
    include_str!("../../packaging/kubernetes/crds/containerruntimeconfigs.yaml"),
    include_str!("../../packaging/kubernetes/crds/controllerconfigs.yaml"),
];

/// Arguments of `crds`.
#[derive(Debug, Args)]
#[command(after_help = "\
Only for clusters without OpenShift: OpenShift installs these CRDs itself, and applying them there would replace its \
own.

Examples:
  machinist crds | kubectl apply --server-side -f -
  machinist crds | kubectl diff -f -")]
pub struct CrdsArgs {}

pub(super) fn run(_: &CrdsArgs) -> anyhow::Result<Exit> {
    print_raw(&CRDS.join("---\n"))?;
    Ok(Exit::Done)
}
