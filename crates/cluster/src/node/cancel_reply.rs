//! Replies to a cancellation request that came too late, or that names a config that is not
//! desired.

use serde_json::{Value, json};

use super::{NodePatch, OwnNode, json_patch};
use crate::ClusterError;
use machinist_kube_api::{MAX_REASON_BYTES, keys::annotation, truncate_at_char};

impl OwnNode {
    /// Removes the cancellation request for `config`, and records the refusal `why` if there is
    /// one. If another request was made in the meantime, the patch fails and that request is kept.
    pub async fn answer_cancel(&self, config: &str, why: Option<&str>) -> Result<(), ClusterError> {
        let question = json_patch::pointer("/metadata/annotations", annotation::CANCEL);
        let mut operations = vec![
            json!({"op": "test", "path": question, "value": config}),
            json!({"op": "remove", "path": question}),
        ];
        if let Some(why) = why {
            let answer = json_patch::pointer("/metadata/annotations", annotation::CANCEL_REFUSED);
            let text = format!("{config}: {why}");
            let text = truncate_at_char(&text, MAX_REASON_BYTES);
            operations.push(json!({"op": "add", "path": answer, "value": text}));
        }
        let change = NodePatch::Operations(Value::Array(operations));
        self.change(&change).await.map(drop)
    }
}
