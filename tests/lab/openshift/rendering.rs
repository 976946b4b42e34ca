//! Rules of rendered configs that the node applies as OpenShift's controller and daemon do.

use serde_json::{Value, json};

use super::{Content, Story, output_text, refusals::NOTHING};
use crate::support::agent::manifest;

/// The sources of a pool that the controller generates name images of their own, which its
/// rendered config does not have: a plan of both finds nothing to change.
pub fn images_of_sources(story: &Story<'_>, content: &Content) {
    let generated = "machineconfiguration.openshift.io/generated-by-controller-version";
    let mut source: Value =
        serde_json::from_str(&manifest("00-worker", json!({}), Value::Null)).unwrap();
    source["metadata"]["annotations"] = json!({generated: "v1"});
    source["spec"]["osImageURL"] = json!("quay.io/template/os@sha256:1");
    source["spec"]["baseOSExtensionsContainerImage"] =
        json!("quay.io/template/extensions@sha256:2");
    let plan = |source: &Value| {
        let rendered = content.rendered(&story.on());
        for (name, config) in [("00-worker", source), ("rendered", &rendered)] {
            let path = format!("/root/pool/{name}.json");
            story.machine.write(&path, config.to_string());
        }
        let paths = ["00-worker", "rendered"].map(|name| format!("/root/pool/{name}.json"));
        let plan = ["/usr/bin/machinist", "plan", &paths[0], &paths[1]];
        output_text(&story.machine.try_exec(&plan).unwrap())
    };
    let text = plan(&source);
    assert!(text.contains(NOTHING), "{text}");
    // An administrator's source counts.
    source["metadata"]["annotations"] = json!({});
    let text = plan(&source);
    assert!(text.contains("OS image"), "{text}");
}

/// Units with drop-ins only and without `enabled` follow the presets, as in OpenShift's daemon. One
/// without a preset stays unchanged.
pub fn drop_ins_only(story: &Story<'_>, content: &mut Content) {
    let units = ["enabled", "disabled", "silent"].map(|name| format!("lab-{name}.service"));
    let boot = story.machine.boot_id();
    let states = || {
        units
            .each_ref()
            .map(|unit| story.machine.property(unit, "UnitFileState"))
    };
    assert_eq!(states(), ["disabled", "enabled", "disabled"]);
    for unit in &units {
        let dropin = json!({"name": "10-lab.conf", "contents": "[Service]\nNice=1\n"});
        content
            .units
            .push(json!({"name": unit, "dropins": [dropin]}));
    }
    story.healthy_update("rendered-worker-presets", content);
    assert_eq!(states(), ["enabled", "disabled", "disabled"]);
    for unit in &units {
        assert_eq!(story.machine.property(unit, "Nice"), "1", "{unit}");
    }
    assert_eq!(story.machine.boot_id(), boot);
}
