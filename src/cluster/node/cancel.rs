//! The answer to a person who cancels an update too late, or one to a config that is not asked for.

use serde_json::{Value, json};

use super::{Change, OwnNode, patches};
use crate::{
    cluster::ClusterError,
    crd::{REASON_LIMIT, cut, names::annotation},
};

impl OwnNode {
    /// Takes the question about `config` away, with the answer `why` where there is one. Another question
    /// that was asked meanwhile makes the request fail, and stands.
    pub async fn answer_cancel(&self, config: &str, why: Option<&str>) -> Result<(), ClusterError> {
        let question = patches::pointer("/metadata/annotations", annotation::CANCEL);
        let mut operations = vec![
            json!({"op": "test", "path": question, "value": config}),
            json!({"op": "remove", "path": question}),
        ];
        if let Some(why) = why {
            let answer = patches::pointer("/metadata/annotations", annotation::CANCEL_REFUSED);
            let text = format!("{config}: {why}");
            let text = cut(&text, REASON_LIMIT);
            operations.push(json!({"op": "add", "path": answer, "value": text}));
        }
        let change = Change::Operations(Value::Array(operations));
        self.change(&change).await.map(drop)
    }
}
