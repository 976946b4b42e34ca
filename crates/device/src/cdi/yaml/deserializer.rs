//! A serde deserializer for the node tree. In a struct a null field counts as absent; in a list the
//! element type decides about nulls.

use std::{collections::BTreeSet, rc::Rc};

use serde::{
    de::{
        DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{Error, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use super::{YamlEntry, YamlKey, YamlNode, YamlValue, scalar::ScalarType};
use machinist_yaml::Location;

pub(super) struct Decoder<'n>(pub(super) &'n YamlNode);

impl Decoder<'_> {
    fn other(&self, wanted: &str) -> Error {
        let found = match &self.0.value {
            YamlValue::Scalar(scalar) if scalar.meaning == ScalarType::Null => "nothing".to_owned(),
            YamlValue::Scalar(scalar) => format!("{:?}", scalar.text),
            YamlValue::List(_) => "a list".to_owned(),
            YamlValue::Map(_) => "a map".to_owned(),
        };
        at(
            self.0.place,
            &format!("{found} found where {wanted} is expected"),
        )
    }

    fn integer<T: TryFrom<i128>>(&self) -> Result<T, Error> {
        let number = match &self.0.value {
            YamlValue::Scalar(scalar) => scalar.integer(),
            _ => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| self.other("an integer in the field's range"))
    }
}

fn at(place: Location, message: &str) -> Error {
    Error::custom(format!("line {}: {message}", place.line))
}

fn is_null(node: &YamlNode) -> bool {
    matches!(&node.value, YamlValue::Scalar(scalar) if scalar.meaning == ScalarType::Null)
}

/// The fields of a map, each with its key; fields that `<<` merges in come last.
type MapFields<'n> = Vec<(&'n YamlKey, &'n YamlNode)>;

/// Adds the fields of `map` that are not in `seen`.
fn collect<'n>(
    map: &'n [YamlEntry],
    seen: &mut BTreeSet<&'n str>,
    fields: &mut MapFields<'n>,
) -> Result<(), Error> {
    let mut merged = None;
    for (key, value) in map {
        match key.scalar.meaning {
            ScalarType::Merge => merged = Some(value),
            ScalarType::Null => {}
            _ if seen.insert(&key.scalar.text) => fields.push((key, value)),
            _ => {}
        }
    }
    let Some(merged) = merged else {
        return Ok(());
    };
    let no_map = || at(merged.place, "merge key << requires a map");
    match &merged.value {
        YamlValue::Map(map) => collect(map, seen, fields),
        YamlValue::List(maps) => maps.iter().try_for_each(|one| match &one.value {
            YamlValue::Map(map) => collect(map, seen, fields),
            _ => Err(no_map()),
        }),
        YamlValue::Scalar(_) => Err(no_map()),
    }
}

impl<'n> Decoder<'n> {
    fn fields(&self) -> Result<MapFields<'n>, Error> {
        let YamlValue::Map(map) = &self.0.value else {
            return Err(self.other("a map"));
        };
        let mut fields = Vec::with_capacity(map.len());
        collect(map, &mut BTreeSet::new(), &mut fields)?;
        Ok(fields)
    }
}

impl<'n> Deserializer<'n> for Decoder<'n> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'n>>(self, _: V) -> Result<V::Value, Error> {
        Err(self.other("another type"))
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match is_null(self.0) {
            true => visitor.visit_none(),
            false => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            YamlValue::Scalar(scalar) if scalar.meaning != ScalarType::Null => {
                visitor.visit_borrowed_str(&scalar.text)
            }
            _ => Err(self.other("a text")),
        }
    }

    fn deserialize_i64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(self.integer()?)
    }

    fn deserialize_u32<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(self.integer()?)
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        let flag = match &self.0.value {
            YamlValue::Scalar(scalar) => scalar.flag(),
            _ => None,
        };
        visitor.visit_bool(flag.ok_or_else(|| self.other("true or false"))?)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.0.value {
            YamlValue::List(items) => visitor.visit_seq(ListItems(items.iter())),
            _ => Err(self.other("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(MapEntries::of(self.fields()?))
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut fields = self.fields()?;
        // An unknown field is kept even if it is null, so that it is refused.
        fields.retain(|(key, value)| !is_null(value) || !known.contains(&key.scalar.text.as_str()));
        visitor.visit_map(MapEntries::of(fields))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i128 u8 u16 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct
        tuple tuple_struct enum identifier ignored_any
    }
}

struct ListItems<'n>(std::slice::Iter<'n, Rc<YamlNode>>);

impl<'n> SeqAccess<'n> for ListItems<'n> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let next = self.0.next();
        next.map(|item| seed.deserialize(Decoder(item))).transpose()
    }
}

struct MapEntries<'n> {
    fields: std::vec::IntoIter<(&'n YamlKey, &'n YamlNode)>,
    value: Option<&'n YamlNode>,
}

impl<'n> MapEntries<'n> {
    fn of(fields: MapFields<'n>) -> Self {
        Self {
            fields: fields.into_iter(),
            value: None,
        }
    }
}

impl<'n> MapAccess<'n> for MapEntries<'n> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((key, value)) = self.fields.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        let name: StrDeserializer<'_, Error> = key.scalar.text.as_str().into_deserializer();
        let known = seed.deserialize(name);
        known
            .map(Some)
            .map_err(|error| at(key.place, &error.to_string()))
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take();
        let value = value.ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(Decoder(value))
    }
}
