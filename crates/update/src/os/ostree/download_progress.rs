//! How much of an image has been downloaded.
//!
//! The extension of libostree prints how many layers it needs before it downloads them, and writes a reference for each
//! complete one.

use super::{OstreeProvider, RpmOstree, image_download::OUTPUT_FILE};
use crate::os::{FetchProgress, HostCommand};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError};

/// Where the extension keeps the references of layers.
const LAYER_REFERENCES: &str = "/ostree/repo/refs/heads/ostree/container/blob";

/// Has the number of layers before the download.
const LAYERS_BEFORE: &str = "/run/machinist/os-download.layers";

/// Maximum length of what the program prints, and of the number.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// The number of needed layers, and their size, in a line such as `layers already present: 1; layers needed: 64 (1.2 GB)`.
fn needed(output: &str) -> Option<(u64, String)> {
    let (_, rest) = output.split_once("layers needed: ")?;
    let (layers, rest) = rest.split_once(" (")?;
    let (size, _) = rest.split_once(')')?;
    Some((layers.parse().ok()?, size.replace('\u{a0}', " ")))
}

fn stored_layers(root: &Root) -> u64 {
    let directory = AbsPath::new(LAYER_REFERENCES).ok();
    let files = directory.and_then(|directory| root.list(&directory).ok());
    files.map_or(0, |files| files.len() as u64)
}

fn text(root: &Root, file: &str) -> String {
    let path = AbsPath::new(file).ok();
    let text = path.and_then(|path| root.read_text(&path, MAX_OUTPUT_BYTES).ok());
    text.unwrap_or_default()
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Records what is there before a download.
    pub(super) fn begin_progress(&self) -> Result<(), RootError> {
        self.write_run_file(OUTPUT_FILE, "")?;
        self.write_run_file(LAYERS_BEFORE, &stored_layers(&self.root).to_string())
    }

    /// The progress of the download that runs.
    pub(super) async fn download_progress(&self) -> FetchProgress {
        let needed = needed(&text(&self.root, OUTPUT_FILE));
        let before = text(&self.root, LAYERS_BEFORE).trim().parse::<u64>();
        let stored = stored_layers(&self.root);
        FetchProgress {
            received_bytes: self.commands.received_bytes().await,
            layers: before.map_or(0, |before| stored.saturating_sub(before)),
            needed_layers: needed.as_ref().map(|(layers, _)| *layers),
            needed_size: needed.map(|(_, size)| size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_layers_are_in_the_output() {
        let output = "layers already present: 1; layers needed: 64 (1.2\u{a0}GB)\n";
        assert_eq!(needed(output), Some((64, "1.2 GB".to_owned())));
        assert_eq!(needed("No changes in x => y\n"), None);
    }
}
