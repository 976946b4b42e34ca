//! Reads the parts of a MachineConfig that are fixed when a machine is installed, or that only an
//! operating-system provider can change.

use serde::Deserialize;
use serde_json::Value;

use super::{
    DiskLayout, MachineConfig, OsConfig,
    disk_layout::{LAYOUT_SECTIONS, without_empty},
};

/// Parses these parts of a MachineConfig in JSON; none if it is no such object. All other parts are
/// skipped, so the config as a whole need not be acceptable here.
pub fn declared(text: &[u8]) -> Option<OsConfig> {
    #[derive(Deserialize)]
    struct ManifestObject {
        spec: ManifestSpec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ManifestSpec {
        config: Option<Value>,
        #[serde(rename = "osImageURL")]
        os_image_url: Option<String>,
        #[serde(rename = "baseOSExtensionsContainerImage")]
        extensions_image: Option<String>,
        kernel_arguments: Option<Vec<String>>,
        extensions: Option<Vec<String>>,
        kernel_type: Option<String>,
        fips: Option<bool>,
    }
    let spec = serde_json::from_slice::<ManifestObject>(text).ok()?.spec;
    let non_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
    let config = spec.config.filter(|config| !config.is_null());
    let mut disk_layout = DiskLayout::new();
    for section in LAYOUT_SECTIONS {
        let entries = config
            .as_ref()
            .and_then(|config| config["storage"][section].as_array());
        let entries = entries.into_iter().flatten().filter_map(without_empty);
        let entries: Vec<Value> = entries.collect();
        if !entries.is_empty() {
            disk_layout.insert(section.to_owned(), entries);
        }
    }
    Some(OsConfig {
        config: MachineConfig {
            os_image_url: non_empty(spec.os_image_url),
            extensions_image: non_empty(spec.extensions_image),
            kernel_arguments: spec.kernel_arguments.unwrap_or_default(),
            extensions: spec.extensions.unwrap_or_default(),
            kernel_type: non_empty(spec.kernel_type).filter(|kind| kind != "default"),
            fips: spec.fips.unwrap_or_default(),
            disk_layout,
            ..MachineConfig::default()
        },
        has_disk_layout: config.is_some(),
    })
}
