//! GRUB's configuration, or its environment block: a simulated boot ends, and a block that is written reads as before.
use machinist_boot_loader::grub::{EnvironmentBlock, GrubFiles, SimulatedGrub};

/// grub.cfg, which sources itself as custom.cfg, beside kernels of every name.
struct Config<'t>(&'t str);

impl GrubFiles for Config<'_> {
    fn text(&self, path: &str) -> Option<String> {
        path.ends_with(".cfg").then(|| self.0.to_owned())
    }

    fn size(&self, path: &str) -> Option<u64> {
        (!path.is_empty()).then_some(1)
    }

    fn is_directory(&self, path: &str) -> bool {
        path.ends_with('/')
    }

    fn list(&self, _path: &str) -> Vec<String> {
        vec!["a-1.conf".to_owned(), "b.cfg".to_owned()]
    }
}

pub(crate) fn check(text: &str) {
    let config = Config(text);
    if let Ok(boot) = SimulatedGrub::new(&config, "/boot/grub").boot() {
        boot.arguments();
        let source = SimulatedGrub::new(&config, "/boot/grub").booted_source();
        let source = source.unwrap().unwrap_or_default();
        assert!(text.contains(&source));
    }
    if let Ok(block) = EnvironmentBlock::parse(text)
        && let Ok(written) = block.to_text()
    {
        let read = EnvironmentBlock::parse(&written).unwrap();
        assert!(block.iter().eq(read.iter()), "{written:?}");
    }
}
