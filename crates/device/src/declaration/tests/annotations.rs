use super::{changed, problems};

#[test]
fn annotations_that_runtimes_act_on_are_refused() {
    for key in [
        "cdi.k8s.io/acme",
        "io.kubernetes.cri-o.Devices",
        "devices.crio.io",
        "seccomp-profile.kubernetes.cri-o.io/main",
        "io.containerd.runc.v2.group",
        "mounts.nri.containerd.io/container.main",
        "run.oci.hooks.stderr",
    ] {
        let message = problems(&changed("acme.dev/node:", &format!("{key}:")));
        let expected = format!("{key:?} cannot be set by a declaration");
        assert_eq!(message.len(), 1, "{message:#?}");
        assert!(message[0].contains(&expected), "{message:#?}");
    }
}
